// What an operator asks for that reads: evicted arguments come back before it runs, and no recipe of
// it may rest on more than it is worth or on what is gone. Such an argument is settled: it moves to
// the swap or becomes an ordinary tensor, which nothing evicts.

#include "runtime/csrc/live/intercept/interception.h"
#include "runtime/csrc/live/machine/ticks.h"

namespace dtr {
namespace {

// While the lock was open another thread took the argument's memory, or wrote it, or dropped it.
bool is_lost(const Value& value) { return !value.home || !value.resident(); }

// Another operator, which is under way, reads or writes the value.
bool held_elsewhere(const Call& call, const Value& value) {
  std::int32_t own = value.unfilled ? 1 : 0;
  for (const TensorArgument& argument : call.arguments) own += argument.value == &value;
  return value.locks > own;
}

}  // namespace

void Interception::prepare_reads(Call& call, OperatorCall& engaged, Lock& lock) {
  for (TensorArgument& argument : call.arguments) {
    argument.value = StorageTable::value_of(argument.storage);
    if (!argument.value) continue;
    engaged.argument(*argument.value);
    used(session_.engine(), *argument.value);
  }
  if (engaged.lacks_arguments()) bring_arguments_back(call, engaged, lock);
  if (session_.constants().some_absent()) keep_what_rests_on_absent(call, engaged);
  if (call.recording || call.too_small || call.info.shares) cut_histories(call, engaged);
  if (!session_.device().work || !session_.requests().follow_stream()) return;
  for (const TensorArgument& argument : call.arguments) {
    if (argument.value) session_.requests().read_on_stream(*argument.value);
  }
}

void Interception::cut_histories(Call& call, OperatorCall& engaged) {
  for (const TensorArgument& argument : call.arguments) {
    Value* value = argument.value;
    if (!value || is_lost(*value)) continue;
    if (call.info.shares) {
      make_constant(call, engaged, *value);
    } else if (session_.engine().histories().outweighed(*value) && !held_elsewhere(call, *value)) {
      settle(call, engaged, *value);
    }
  }
}

// What is read while it could not be recomputed may be read so again.
void Interception::keep_what_rests_on_absent(Call& call, OperatorCall& engaged) {
  for (const TensorArgument& argument : call.arguments) {
    Value* value = argument.value;
    if (!value || is_lost(*value)) continue;
    if (session_.engine().histories().rests_on_absent(*value)) settle(call, engaged, *value);
  }
}

void Interception::bring_arguments_back(Call& call, OperatorCall& engaged, Lock& lock) {
  const std::int64_t begin = ticks();
  engaged.bring_back([&](Value& value) { session_.bring_back(value, lock); });
  // Another thread may have made one an ordinary tensor meanwhile.
  for (const TensorArgument& argument : call.arguments) {
    Value* value = argument.value;
    if (value && value->constant()) make_constant(call, engaged, *value);
  }
  call.remat_ticks = ticks() - begin;
  session_.watch_for_thrash();
}

void Interception::settle(Call& call, OperatorCall& engaged, Value& value) {
  session_.engine().settle(value);
  if (value.constant()) make_constant(call, engaged, value);
}

// An argument becomes an ordinary tensor, which the operator then reads.
void Interception::make_constant(Call& call, OperatorCall& engaged, Value& value) {
  if (!value.constant()) session_.engine().freeze(value);
  for (TensorArgument& argument : call.arguments) {
    if (argument.value != &value) continue;
    argument.value = nullptr;
    argument.armed = is_armed(argument.storage);
    if (call.info.shares) disarm(argument.storage);
    engaged.release(value);
  }
}

}  // namespace dtr
