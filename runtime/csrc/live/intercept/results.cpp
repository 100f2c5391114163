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
    } else if (call.makes_value(device_, tensor)) {
      adopt_result(call, op, i, storage_of(tensor));
    }
  }
}

void Interception::adopt_result(Call& call, Op& op, std::uint16_t output,
                                c10::StorageImpl* storage) {
  StorageTable::Adopted block = storages_.adopt(storage);
  if (!block) return;
  const Bytes bytes = bytes_of(storage);
  call.bytes += bytes;
  call.made_bytes += bytes;
  Value& value = engine_.write(op, output, bytes, storage, block.get());
  storages_.attach(storage, value, block.release());
  if (call.info.blank) keep_until_used(engine_, value);
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
    c10::StorageImpl* storage = storages_.home_of(*value);
    if (!storage || StorageTable::value_of(storage) == value) visit(*value, storage, slot);
  }
}

// A written storage holds another value now: a new version, or what nobody can recompute.
void Interception::adopt_written(Call& call, OperatorCall& engaged) {
  for_each_written(call, [&](Value& value, c10::StorageImpl* storage, std::uint16_t output) {
    Block* block = block_of(value);
    Op* op = engaged.op();
    if (!storage) {
      storages_.free(block);
    } else if (op && !long_written(value)) {
      Value& next = engine_.write(*op, output, bytes_of(storage), storage, block);
      next.version = value.version + 1;
      storages_.attach(storage, next, block);
    } else {
      storages_.detach(storage, block);
      swap_.note_movable(call, storage);
    }
    engaged.overwritten(value);
  });
}

void Interception::count(Call& call) {
  if (tally_.costs && call.here) {
    call.kernel_ticks = to_ticks(tally_.costs->cost(call.cost, estimate(call.bytes)));
  } else if (call.first_run) {
    call.kernel_ticks = tally_.usual_ticks(call.bytes);
  }
  const bool usual = !tally_.costs && call.cost != 0 && !call.first_run;
  call.usual_ticks =
      usual ? tally_.usual.of(call.cost, call.kernel_ticks, tally_.steps) : call.kernel_ticks;
  tally_.touched_bytes += call.bytes;
  ++tally_.operators;
  tally_.kernel_ticks += call.kernel_ticks;
  tally_.thrash.computed(call.kernel_ticks);
}

void Interception::after(Call& call, OperatorCall& engaged, const torch::jit::Stack& stack,
                         Lock& lock) {
  count(call);
  const bool in_capture = requests_.capturing();  // Of one that began meanwhile.
  if (call.stays || in_capture) {
    call.recording = false;
    engaged.undo();
  }
  if (Op* op = engaged.op()) adopt_results(call, *op, stack);
  adopt_written(call, engaged);
  const Nanos cost = options_.logical_clock ? Nanos{call.bytes} : to_nanoseconds(call.usual_ticks);
  if (TraceRecorder* recorder = trace_.recorder()) trace_.end(call, *recorder, cost, stack);
  if (call.bytes > engine_.largest_operator()) engine_.note_operator(bytes_within(call));
  const bool recorded = engaged.op();
  tell_what_stays(call, stack, !recorded && !in_capture);
  Op* kept = engaged.finish(cost);
  if (kept) Recipe::of(*kept).has_run();
  tally_.recorded += kept != nullptr;
  if (recorded && !options_.verify) constants_.shed_sometimes();
  engaged.let_overwritten_go();
  swap_.adopt_what_was_written(call);
  swap_.adopt_what_was_made(call, stack);

  look_at_results(call, stack);
  arm_arguments(call);
  engaged.unlock();
  swap_.copy_beside(call.here);
  const std::int64_t passed = ticks() - call.begin_ticks;
  tally_.bookkeeping_ticks += passed - call.remat_ticks - call.inside_ticks;
  Hold::ran(call.inside_hold, passed, call.kernel_ticks);
  if (options_.timeline) tally_.timeline.push_back(memory_.live());
  if (detector_ && kept) verify_repeats(call, *kept, lock);
  apply_instruments(kept, lock);
}

// A sparse or quantized result may hold on to the arguments, and read them without the dispatcher.
void Interception::look_at_results(Call& call, const torch::jit::Stack& stack) {
  call.for_each_result(stack, [&](const c10::TensorImpl& tensor) {
    call.foreign |= !is_dense(tensor);
    if (detector_) detector_->made(tensor, call.info);
  });
}

void Interception::arm_arguments(const Call& call) {
  for (const TensorArgument& argument : call.arguments) {
    Value* value = argument.value;
    if (!value && argument.armed) constants_.arm(argument.storage);
    if (!value || !value->producer || !value->home) continue;
    call.foreign ? engine_.freeze(*value) : storages_.arm(*value);
  }
}

// What was written is perhaps half written, and stays as it is.
void Interception::after_failure(Call& call, OperatorCall& engaged) {
  if (TraceRecorder* recorder = trace_.recorder()) recorder->abandon();
  if (tally_.costs && call.here) tally_.costs->abandon(call.sample);
  for_each_written(call, [&](Value& value, c10::StorageImpl* storage, std::uint16_t) {
    Block* block = block_of(value);
    storage ? storages_.detach(storage, block) : storages_.free(block);
    if (storage) swap_.note_movable(call, storage);
    engaged.overwritten(value);
  });
  engaged.undo();
  swap_.adopt_what_was_written(call);
  arm_again(call);
}

void Interception::arm_again(const Call& call) {
  for (const TensorArgument& argument : call.arguments) {
    if (argument.value) storages_.arm(*argument.value);
    if (argument.armed) constants_.arm(argument.storage);
  }
}

}  // namespace dtr
