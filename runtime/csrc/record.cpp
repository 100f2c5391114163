// The live runtime's side of a trace: which storages an operator has for arguments and results. See
// recorder.h.

#include <algorithm>

#include "runtime/csrc/call.h"
#include "runtime/csrc/guard.h"

namespace dtr {

void Session::start_trace() {
  Turn turn(*this);
  TORCH_CHECK(!recorder_.load(), "a trace is being recorded already; traces do not nest");
  TORCH_CHECK(joined_ == 0, "a trace is of one thread, and ", joined_,
              " others have joined this scope: record it before they do");
  recorders_.push_back(std::make_unique<TraceRecorder>(last_name_));
  recorder_ = recorders_.back().get();
}

TraceRecorder::Records Session::take_trace() {
  TraceRecorder* recorder = recorder_.exchange(nullptr);
  TORCH_CHECK(recorder, "no trace is being recorded");
  TraceRecorder::Records records = recorder->take();
  last_name_ = recorder->last();
  return records;
}

void Session::freed(const void* data) {
  if (TraceRecorder* recorder = recorder_) recorder->freed(data);
}

const void* Session::key_of(const c10::StorageImpl* storage) const {
  if (value_of(storage)) return storage;
  Block* block = block_of(storage);
  return block ? pool_->data(block) : static_cast<const void*>(storage);
}

void Session::record_begin(const Call& call, TraceRecorder& recorder) {
  c10::SmallVector<const void*, 8> arguments;
  c10::SmallVector<std::int64_t, 8> written;
  c10::SmallVector<Bytes, 4> copies;
  c10::SmallVector<const c10::StorageImpl*, 4> statistics;
  for (const TensorArgument& argument : call.arguments) {
    if (call.info.shape_only) break;
    if (argument.written && !call.info.fresh) {
      written.push_back(static_cast<std::int64_t>(arguments.size()));
    } else if (argument.written && call.recording) {
      // Statistics written beside results: constants by now, of which a replay writes a copy.
      if (std::find(statistics.begin(), statistics.end(), argument.storage) == statistics.end()) {
        statistics.push_back(argument.storage);
        copies.push_back(static_cast<Bytes>(argument.storage->nbytes()));
      }
    }
    arguments.push_back(key_of(argument.storage));
  }
  recorder.begin(arguments, written, copies);
}

void Session::record_end(const Call& call, TraceRecorder& recorder, Nanos cost,
                         const torch::jit::Stack& stack) {
  c10::SmallVector<TraceRecorder::Result, 8> results;
  const auto add = [&](const c10::StorageImpl* storage) {
    if (value_of(storage)) {
      auto* value = value_of(storage);
      if (!value->resident()) return;  // No result of this call.
      results.push_back({storage, pool_->data(static_cast<Block*>(value->data)), true});
    } else if (Block* block = block_of(storage)) {
      results.push_back({pool_->data(block), pool_->data(block), false});
    }
  };
  const c10::IValue* first = stack.data() + stack.size() - call.info.returns;
  for (std::uint32_t i = 0; i < call.info.returns; ++i) {
    for_each_tensor(first[i], [&](const c10::TensorImpl& tensor, std::uint16_t) {
      if (tensor.has_storage()) add(tensor.unsafe_storage().unsafeGetStorageImpl());
    });
  }
  for (const TensorArgument& argument : call.arguments) {
    if (!argument.written || call.info.fresh || call.info.shape_only) continue;
    results.push_back({key_of(argument.storage), nullptr, value_of(argument.storage) != nullptr});
  }
  recorder.end(call.info, cost, results);
  for (const TraceRecorder::Result& result : results) {
    if (!result.tracked || !result.data) continue;
    Value* value = value_of(static_cast<const c10::StorageImpl*>(result.key));
    value->name = recorder.name_of(result.key);
  }
}

}  // namespace dtr
