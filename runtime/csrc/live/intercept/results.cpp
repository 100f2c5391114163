// What an operator leaves behind (the last step of intercept.cpp): fresh storages become values,
// written ones hold a new version, and the operator is counted. After an operator that failed,
// what it wrote stays as it is.

#include <algorithm>
#include <vector>

#include "runtime/csrc/engine/held.h"
#include "runtime/csrc/live/intercept/interception.h"
#include "runtime/csrc/live/machine/ticks.h"
#include "runtime/csrc/live/session/hold.h"

namespace dtr {

namespace {

// What a budget must hold for the call: of the storages that have a value, each once.
Bytes bytes_within(const Call& call) {
  std::vector<const Value*> values;
  for (const TensorArgument& argument : call.arguments) {
    if (argument.value) values.push_back(argument.value);
  }
  std::ranges::sort(values);
  values.erase(std::ranges::unique(values).begin(), values.end());
  Bytes bytes = call.made_bytes;
  for (const Value* value : values) bytes += value->size;
  return bytes;
}

}  // namespace

void Interception::adopt_results(Call& call, Op& op, const torch::jit::Stack& stack) {
  const c10::ArrayRef<c10::IValue> results = call.results(stack);
  for (std::uint16_t i = 0; i < results.size(); ++i) {
    if (!is_defined_tensor(results[i])) continue;
    const c10::TensorImpl& tensor = *results[i].unsafeToTensorImpl();
    if (i < call.kept.size() && call.kept[i]) {
      call.stays = "returns memory that it keeps";
    } else if (call.makes_value(session_.device(), tensor)) {
      adopt_result(call, op, i, storage_of(tensor));
    }
  }
}

void Interception::adopt_result(Call& call, Op& op, std::uint16_t output,
                                c10::StorageImpl* storage) {
  StorageTable::Adopted block = session_.storages().adopt(storage);
  if (!block) return;
  const Bytes bytes = bytes_of(storage);
  call.bytes += bytes;
  call.made_bytes += bytes;
  Value& value = session_.engine().write(op, output, bytes, storage, block.get());
  session_.storages().attach(storage, value, block.release());
  if (call.info.blank) keep_until_used(session_.engine(), value);
}

// Calls `visit(value, storage, output)` for each value that the operator writes. `storage` is null
// where another thread has dropped it: what is there is no longer what a recipe makes.
template <class Visit>
void Interception::for_each_written(const Call& call, const Visit& visit) {
  std::uint16_t output = call.info.returns;
  for (const TensorArgument& argument : call.arguments) {
    if (!argument.written) continue;
    const std::uint16_t slot = output++;
    Value* value = argument.value;
    if (!value || !value->home) continue;
    c10::StorageImpl* storage = session_.storages().home_of(*value);
    if (!storage || StorageTable::value_of(storage) == value) visit(*value, storage, slot);
  }
}

// A written storage holds another value now: a new version, or what nobody can recompute.
void Interception::adopt_written(Call& call, OperatorCall& engaged) {
  for_each_written(call, [&](Value& value, c10::StorageImpl* storage, std::uint16_t output) {
    Block* block = block_of(value);
    Op* op = engaged.op();
    if (!storage) {
      session_.storages().free(block);
    } else if (op && !long_written(value)) {
      Value& next = session_.engine().write(*op, output, bytes_of(storage), storage, block);
      next.version = value.version + 1;
      session_.storages().attach(storage, next, block);
    } else {
      session_.storages().detach(storage, block);
      session_.swap().note_movable(call, storage);
    }
    engaged.overwritten(value);
  });
}

void Interception::count(Call& call) {
  if (session_.tally().costs && call.here) {
    call.kernel_ticks = to_ticks(session_.tally().costs->cost(call.key, estimate(call.bytes)));
  } else if (call.first_run) {
    call.kernel_ticks = session_.tally().usual_ticks(call.bytes);
  }
  const bool usual = !session_.tally().costs && call.key != 0 && !call.first_run;
  call.usual_ticks =
      usual ? session_.tally().usual.of(call.key, call.kernel_ticks, session_.tally().steps)
            : call.kernel_ticks;
  session_.tally().touched_bytes += call.bytes;
  ++session_.tally().operators;
  session_.tally().kernel_ticks += call.kernel_ticks;
  session_.tally().thrash.computed(call.kernel_ticks);
}

void Interception::after(Call& call, OperatorCall& engaged, const torch::jit::Stack& stack,
                         Lock& lock) {
  count(call);
  const bool in_capture = session_.requests().capturing();  // Of one that began meanwhile.
  if (call.stays || in_capture) {
    call.recording = false;
    engaged.undo();
  }
  if (Op* op = engaged.op()) adopt_results(call, *op, stack);
  adopt_written(call, engaged);
  const Nanos cost =
      session_.options().logical_clock ? Nanos{call.bytes} : to_nanoseconds(call.usual_ticks);
  if (TraceRecorder* recorder = session_.trace().recorder())
    session_.trace().end(call, *recorder, cost, stack);
  if (call.bytes > session_.engine().largest_operator())
    session_.engine().note_operator(bytes_within(call));
  const bool recorded = engaged.op();
  tell_what_stays(call, stack, !recorded && !in_capture);
  Op* kept = engaged.finish(cost);
  if (call.too_small || (recorded && !kept)) learn_size(call, stack);
  if (kept) Recipe::of(*kept).has_run();
  session_.tally().recorded += kept != nullptr;
  engaged.let_overwritten_go();
  session_.swap().adopt_what_was_written(call);
  session_.swap().adopt_what_was_made(call, stack);

  look_at_results(call, stack);
  arm_arguments(call);
  engaged.unlock();
  session_.swap().copy_beside(call.here);
  const std::int64_t passed = ticks() - call.begin_ticks;
  session_.tally().bookkeeping_ticks += passed - call.remat_ticks - call.inside_ticks;
  Hold::ran(call.inside_hold, passed, call.kernel_ticks);
  if (session_.options().timeline) session_.tally().timeline.push_back(session_.memory().live());
  if (session_.detector() && kept) verify_repeats(call, *kept, lock);
  // Which may free this recipe.
  if (recorded && !session_.options().verify) session_.constants().shed_sometimes();
  apply_instruments(kept, lock);
}

// A result of integers that stays for this thread's sake alone tells nothing of sizes.
void Interception::learn_size(const Call& call, const torch::jit::Stack& stack) {
  if (InOperator::state.indices_stay) return;
  bool large = false;
  call.for_each_result(stack, [&](const c10::TensorImpl& tensor) {
    large |= call.makes_value(session_.device(), tensor);
  });
  if (large) {
    call.info.varies = call.info.varies || call.too_small;
  } else if (!call.too_small) {
    session_.tally().small.add(call.info, call.key);
  }
}

// A sparse or quantized result may hold on to the arguments, and read them without the dispatcher.
void Interception::look_at_results(Call& call, const torch::jit::Stack& stack) {
  call.for_each_result(stack, [&](const c10::TensorImpl& tensor) {
    call.foreign |= !is_dense(tensor);
    if (session_.detector()) session_.detector()->made(tensor, call.info);
  });
}

void Interception::arm_arguments(const Call& call) {
  for (const TensorArgument& argument : call.arguments) {
    Value* value = argument.value;
    if (!value && argument.armed) session_.constants().arm(argument.storage);
    if (!value || !value->producer || !value->home) continue;
    call.foreign ? session_.engine().freeze(*value) : session_.storages().arm(*value);
  }
}

// What was written is perhaps half written, and stays as it is.
void Interception::after_failure(Call& call, OperatorCall& engaged) {
  if (TraceRecorder* recorder = session_.trace().recorder()) recorder->abandon();
  if (session_.tally().costs && call.here) session_.tally().costs->abandon(call.sample);
  for_each_written(call, [&](Value& value, c10::StorageImpl* storage, std::uint16_t) {
    Block* block = block_of(value);
    storage ? session_.storages().detach(storage, block) : session_.storages().free(block);
    if (storage) session_.swap().note_movable(call, storage);
    engaged.overwritten(value);
  });
  engaged.undo();
  session_.swap().adopt_what_was_written(call);
  arm_again(call);
}

void Interception::arm_again(const Call& call) {
  for (const TensorArgument& argument : call.arguments) {
    if (argument.value) session_.storages().arm(*argument.value);
    if (argument.armed) session_.constants().arm(argument.storage);
  }
}

}  // namespace dtr
