// Guides one call of an operator through the steps that the engine needs.
//
// All code that runs operators (the live runtime, the simulation of its rules, the tests' harness)
// takes the same steps in the same order:
//
//   OperatorCall call(engine);
//   call.argument(value);         // For each argument: locks it and notes the access.
//   call.bring_back(lock);        // Recomputes the missing arguments.
//   call.begin(op);               // `op`: the recipe, made before the operator runs.
//   ...                           // The operator runs; engine.write(op, ...) adds its results.
//   call.overwritten(value);      // For the old value of each storage that the operator wrote.
//   call.finish(cost);
//   call.let_overwritten_go();
//   call.unlock();                // The destructor makes the last two calls if you do not.
//
// The destructor unlocks all values. If an exception came before finish(), it also undoes the call:
// values passed to overwritten() lose their content, because their storages may be half written,
// and a recipe without outputs is erased. Hold the engine's lock in all calls, destructor included.

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
  void hold(Value& value) {  // Locks a value, but notes no access.
    count_ < kFew ? void(few_[count_] = &value) : more_.push_back(&value);
    ++count_;
    engine_.lock(value);
  }
  void release(Value& value);  // Releases one of this call's locks on the value.

  bool lacks_arguments() const { return missing_; }
  // Calls `materialize(value)`, which must bring the value back, for each missing argument.
  template <class Materialize>
  void bring_back(const Materialize& materialize) {
    if (!std::exchange(missing_, false)) return;
    const auto each = [this](const auto& visit) {
      for (std::size_t i = 0; i < count_; ++i) {
        if (Value* value = locked(i)) visit(*value);
      }
    };
    bring_all_back(each, materialize);
  }
  void bring_back(Lock& lock) {
    bring_back([&](Value& value) { engine_.materialize(value, lock); });
  }

  void begin(Op& op) {
    op_ = &op;
    begin_on_tape();
  }
  Op* op() const { return op_; }  // Null if the call is not recorded.

  void overwritten(Value& old) { overwritten_.push_back(&old); }
  Op* finish(Nanos cost);  // Returns the recipe if it is kept, else null.
  void let_overwritten_go();
  void undo();
  void unlock();  // Unlocks the arguments. This may banish some and erase the recipe.

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
  Value* few_[kFew];  // The first locked values; null once unlocked. The others are in `more_`.
  std::vector<Value*> more_, overwritten_;
};

}  // namespace dtr
