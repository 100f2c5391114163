// What an operator leaves behind (the last step of intercept.cpp): fresh storages become values,
// written ones hold a new version, and the operator is counted. After an operator that failed,
// what it wrote stays as it is.

#include <utility>

#include "runtime/csrc/live/machine/ticks.h"
#include "runtime/csrc/live/session/hold.h"
#include "runtime/csrc/live/session/locks.h"
#include "runtime/csrc/live/session/session.h"

namespace dtr {
namespace {

// Until a time is known: five microseconds to launch, and memory at 2 TB/s. Products of matrices
// and convolutions come out too cheap, for the first step only.
Nanos estimate(Bytes bytes) { return 5us + Nanos{bytes / 2000}; }

}  // namespace

void Session::adopt_results(Call& call, Op& op, const torch::jit::Stack& stack) {
  const c10::ArrayRef<c10::IValue> results = call.results(stack);
  for (std::uint16_t i = 0; i < results.size(); ++i) {
    if (!is_defined_tensor(results[i])) continue;
    const c10::TensorImpl& tensor = *results[i].unsafeToTensorImpl();
    if (!device_.holds(tensor)) continue;
    if (i < call.kept.size() && call.kept[i]) {
      call.stays = "returns memory that it keeps";
    } else {
      adopt_result(call, op, i, tensor);
    }
  }
}

void Session::adopt_result(Call& call, Op& op, std::uint16_t output,
                           const c10::TensorImpl& tensor) {
  c10::StorageImpl* storage = storage_of(tensor);
  const auto bytes = static_cast<Bytes>(storage->nbytes());
  if (!worth_evicting(tensor, bytes) || call.has_argument_over(storage)) return;
  StorageTable::Adopted block = storages_.adopt(storage);
  if (!block) return;
  call.bytes += bytes;
  Value& value = engine_.write(op, output, bytes, storage, block.get());
  storages_.attach(storage, value, block.release());
  if (call.info.blank) engine_.keep_until_used(value);
}

// Calls `visit(value, storage, output)` for each value that the operator writes. `storage` is null
// where another thread has dropped it: what is there is no longer what a recipe makes.
template <class Visit>
void Session::for_each_written(const Call& call, const Visit& visit) {
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
void Session::adopt_written(Call& call, OperatorCall& engaged) {
  for_each_written(call, [&](Value& value, c10::StorageImpl* storage, std::uint16_t output) {
    Block* block = block_of(value);
    Op* op = engaged.op();
    if (!storage) {
      storages_.free(block);
    } else if (op && !long_written(value)) {
      const auto bytes = static_cast<Bytes>(storage->nbytes());
      Value& next = engine_.write(*op, output, bytes, storage, block);
      next.version = value.version + 1;
      storages_.attach(storage, next, block);
    } else {
      storages_.detach(storage, block);
      note_movable(call, storage);
    }
    engaged.overwritten(value);
  });
}

void Session::count(Call& call) {
  if (costs_ && call.here) {
    call.kernel_ticks = to_ticks(costs_->cost(call.cost, estimate(call.bytes)));
  } else if (call.first_run) {
    call.kernel_ticks = usual_ticks(call.bytes);
  }
  const bool usual = !costs_ && call.cost != 0 && !call.first_run;
  call.usual_ticks = usual ? usual_.of(call.cost, call.kernel_ticks, steps_) : call.kernel_ticks;
  touched_bytes_ += call.bytes;
  ++operators_;
  kernel_ticks_ += call.kernel_ticks;
  thrash_.computed(call.kernel_ticks);
}

// By what the operators so far took for each byte.
std::int64_t Session::usual_ticks(Bytes bytes) const {
  if (touched_bytes_ == 0) return to_ticks(estimate(bytes));
  return static_cast<std::int64_t>(static_cast<double>(kernel_ticks_) * bytes / touched_bytes_);
}

void Session::after(Call& call, OperatorCall& engaged, const torch::jit::Stack& stack, Lock& lock) {
  count(call);
  const bool in_capture = captures_ > 0;  // Of one that began meanwhile.
  if (call.stays || in_capture) {
    call.recording = false;
    engaged.undo();
  }
  if (Op* op = engaged.op()) {
    Recipe::of(*op).has_run();
    adopt_results(call, *op, stack);
  }
  adopt_written(call, engaged);
  const Nanos cost = options_.logical_clock ? Nanos{call.bytes} : to_nanoseconds(call.usual_ticks);
  if (TraceRecorder* recorder = trace_.recorder()) {
    trace_.end(call, storages_, *recorder, cost, stack);
  }
  engine_.note_operator(call.bytes);
  const bool recorded = engaged.op();
  if (call.info.listed && call.recordable && !call.stays && !recorded && !in_capture) {
    call.stays = "writes a tensor of over 64 KiB, or two tensors over one memory";
  }
  tell_what_stays(call, stack);
  Op* kept = engaged.finish(cost);
  recorded_ += kept != nullptr;
  if (recorded && !options_.instruments.verify) constants_.shed_sometimes();
  engaged.let_overwritten_go();
  adopt_what_was_written(call);
  adopt_what_was_made(call, stack);

  look_at_results(call, stack);
  arm_arguments(call);
  engaged.unlock();
  swap_beside(call.here);
  const std::int64_t passed = ticks() - call.begin_ticks;
  bookkeeping_ticks_ += passed - call.remat_ticks - call.inside_ticks;
  Hold::ran(call.inside_hold, passed, call.kernel_ticks);
  if (options_.timeline) timeline_.push_back(memory_->live());
  if (detector_ && kept) verify_repeats(call, *kept, lock);
  apply_instruments(kept, lock);
}

// A sparse or quantized result may hold on to the arguments, and read them without the dispatcher.
void Session::look_at_results(Call& call, const torch::jit::Stack& stack) {
  for (const c10::IValue& result : call.results(stack)) {
    for_each_tensor(result, [&](c10::TensorImpl& tensor, std::uint16_t) {
      call.foreign |= !is_dense(tensor);
      if (detector_) detector_->made(tensor, call.info);
    });
  }
}

void Session::arm_arguments(const Call& call) {
  for (const TensorArgument& argument : call.arguments) {
    Value* value = argument.value;
    if (!value && argument.armed) arm_constants(argument.storage);
    if (!value || !value->producer || !value->home) continue;
    call.foreign ? engine_.freeze(*value) : storages_.arm(*value);
  }
}

// Where recipes read it still: else its storage may be gone, or the program's alone.
void Session::arm_constants(c10::ArrayRef<c10::StorageImpl*> storages) {
  for (c10::StorageImpl* storage : storages) {
    if (constants_.find(storage)) StorageTable::arm(storage);
  }
}

// What was written is perhaps half written, and stays as it is.
void Session::after_failure(Call& call, OperatorCall& engaged) {
  if (TraceRecorder* recorder = trace_.recorder()) recorder->abandon();
  if (costs_ && call.here) costs_->abandon(call.sample);
  for_each_written(call, [&](Value& value, c10::StorageImpl* storage, std::uint16_t) {
    Block* block = block_of(value);
    storage ? storages_.detach(storage, block) : storages_.free(block);
    if (storage) note_movable(call, storage);
    engaged.overwritten(value);
  });
  engaged.undo();
  adopt_what_was_written(call);
  arm_again(call);
}

void Session::arm_again(const Call& call) {
  for (const TensorArgument& argument : call.arguments) {
    if (argument.value) storages_.arm(*argument.value);
    if (argument.armed) arm_constants(argument.storage);
  }
}

}  // namespace dtr
