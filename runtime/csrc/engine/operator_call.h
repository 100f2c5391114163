// One operator on its way through the engine.
//
// Whoever runs operators (the live runtime, the simulation of its rules, the harness of tests) does
// the same steps in the same order:
//
//   OperatorCall call(engine);
//   call.argument(value);         // For each: it is locked, and has been used now.
//   call.bring_back(lock);        // What is missing is recomputed.
//   call.begin(op);               // The recipe, made before the operator consumes its arguments.
//   ...                           // The operator runs. Its results: engine.write(op, ...).
//   call.overwritten(value);      // For each storage that was written: its old value.
//   call.finish(cost);
//   call.let_overwritten_go();
//   call.unlock();                // These two, if not called, are the destructor's.
//
// The destructor gives every lock back. Where an exception comes before finish(), the destructor
// also undoes the call: old values of what may be half written lose their content, and the recipe
// is abandoned. The engine's lock is held in all of it, the destructor included.

#pragma once

#include <utility>
#include <vector>

#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/engine/held.h"

namespace dtr {

class OperatorCall {
 public:
  explicit OperatorCall(Engine& engine) : engine_(engine) {}
  OperatorCall(const OperatorCall&) = delete;
  ~OperatorCall();

  void argument(Value& value) {
    hold(value);
    begin_on_tape();
    engine_.accessed(value);
    missing_ |= !value.resident();
  }
  // Locks what the recipe reads in an argument's stead.
  void hold(Value& value) {
    count_ < kFew ? void(few_[count_] = &value) : more_.push_back(&value);
    ++count_;
    engine_.lock(value);
  }
  void release(Value& value);  // Gives one of its locks back now.

  bool lacks_arguments() const { return missing_; }
  // `materialize(value)` must bring it back.
  template <class Materialize>
  void bring_back(const Materialize& materialize) {
    for (std::size_t i = 0; missing_ && i < count_; ++i) {
      if (Value* value = locked(i); value && !value->resident()) materialize(*value);
    }
    missing_ = false;
  }
  void bring_back(Lock& lock) {
    bring_back([&](Value& value) { engine_.materialize(value, lock); });
  }

  void begin(Op& op) {
    op_ = &op;
    begin_on_tape();
  }
  Op* op() const { return op_; }  // Null where the call is not recorded.

  void overwritten(Value& old) { overwritten_.push_back(&old); }
  Op* finish(Nanos cost);  // Returns the recipe if it is kept.
  void let_overwritten_go();
  void undo();
  void unlock();  // The arguments. To unlock one may banish it, and with it the recipe.

 private:
  void begin_on_tape() {
    if (!std::exchange(on_tape_, true)) engine_.begin_operator();
  }

  static constexpr std::size_t kFew = 8;
  Value*& locked(std::size_t i) { return i < kFew ? few_[i] : more_[i - kFew]; }

  Engine& engine_;
  Op* op_ = nullptr;
  bool missing_ = false, on_tape_ = false;
  std::size_t count_ = 0;
  Value* few_[kFew];  // Locked, in order; null once released. The rest is in `more_`.
  std::vector<Value*> more_, overwritten_;
};

}  // namespace dtr
