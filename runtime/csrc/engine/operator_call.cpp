#include "runtime/csrc/engine/operator_call.h"

#include <utility>

namespace dtr {

OperatorCall::~OperatorCall() {
  undo();
  unlock();
}

void OperatorCall::release(Value& value) {
  for (std::size_t i = 0; i < count_; ++i) {
    if (locked(i) != &value) continue;
    locked(i) = nullptr;
    return engine_.unlock(value);
  }
}

Op* OperatorCall::finish(Nanos cost) {
  Op* op = std::exchange(op_, nullptr);
  const bool kept = op && op->live_outputs > 0;
  op ? engine_.finish(*op, cost) : engine_.advance(cost);
  engine_.end_operator(cost);
  return kept ? op : nullptr;
}

// Results that were adopted before the call failed keep their recipe.
void OperatorCall::undo() {
  let_overwritten_go();
  Op* op = std::exchange(op_, nullptr);
  if (op) op->live_outputs > 0 ? engine_.finish(*op, 0ns) : engine_.abandon(*op);
}

void OperatorCall::let_overwritten_go() {
  for (Value* old : overwritten_) engine_.overwritten(*old);
  overwritten_.clear();
}

void OperatorCall::unlock() {
  for (std::size_t i = 0; i < count_; ++i) {
    if (Value* value = std::exchange(locked(i), nullptr)) engine_.unlock(*value);
  }
  count_ = 0;
  more_.clear();
}

}  // namespace dtr
