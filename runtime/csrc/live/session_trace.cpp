// The live runtime's side of a trace: which storages an operator has for arguments and results. See
// recorder.h.
//
// Besides the traces that the user asks for, the first steps of every scope are recorded, and kept
// for an error that is to say which budget would do (runtime/advice.py). That ends after some steps
// or operators, so a long run pays nothing for it. Where nothing is recorded by recipes (measure),
// what a scope with a budget could recompute is told by the operators, their results, and what is
// made of what. A constant that is written then counts as one whose dependents stay; a scope with a
// budget may give them a copy instead.

#include <algorithm>

#include "runtime/csrc/live/call.h"
#include "runtime/csrc/live/guard.h"

namespace dtr {

namespace {
// Integers: 8 MiB, some 50,000 operators.
constexpr std::size_t kLongestWatch = std::size_t{1} << 20;
}  // namespace

void Session::watch() {
  recorders_.push_back(std::make_unique<TraceRecorder>(last_name_, options_.record));
  recorder_ = watched_ = recorders_.back().get();
  watch_ = Watch::kOn;
}

void Session::end_watch(Watch why) {
  Watch on = Watch::kOn;
  if (!watch_.compare_exchange_strong(on, why)) return;
  recorder_ = nullptr;
  last_name_ = watched_->last();
}

Session::Seen Session::seen() const {
  if (!watched_) return {{}, 0, Watch::kOff};
  return {watched_->copy(), watched_steps_, watch_};
}

void Session::rethrow_with_advice(const c10::OutOfMemoryError& error) {
  const Bytes at_least = refused_.exchange(0);
  const Adviser adviser = adviser_;
  if (at_least == 0 || !adviser) throw;
  TORCH_CHECK_WITH(OutOfMemoryError, false, error.msg(), adviser(at_least));
}

void Session::start_trace() {
  Turn turn(*this);
  end_watch(Watch::kTraced);
  TORCH_CHECK(!recorder_.load(), "a trace is being recorded already; traces do not nest");
  TORCH_CHECK(joined_ == 0, "a trace is of one thread, and ", joined_,
              " others have joined this scope: record it before they do");
  recorders_.push_back(std::make_unique<TraceRecorder>(last_name_, options_.record));
  recorder_ = recorders_.back().get();
}

TraceRecorder::Records Session::take_trace() {
  TraceRecorder* recorder = watch_ == Watch::kOn ? nullptr : recorder_.exchange(nullptr);
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
  const bool recording = options_.record ? call.recording : call.recordable;
  c10::SmallVector<const void*, 8> arguments;
  c10::SmallVector<std::int64_t, 8> written;
  c10::SmallVector<Bytes, 4> copies;
  c10::SmallVector<const c10::StorageImpl*, 4> statistics;
  for (const TensorArgument& argument : call.arguments) {
    if (call.info.shape_only) break;
    if (argument.written && !call.info.fresh) {
      written.push_back(static_cast<std::int64_t>(arguments.size()));
    } else if (argument.written && recording) {
      // Statistics written beside results: constants by now, of which a replay writes a copy.
      if (std::find(statistics.begin(), statistics.end(), argument.storage) == statistics.end()) {
        statistics.push_back(argument.storage);
        copies.push_back(static_cast<Bytes>(argument.storage->nbytes()));
      }
    }
    arguments.push_back(key_of(argument.storage));
    if (!options_.record && argument.written && !call.info.fresh &&
        !recorder.tracks(arguments.back())) {
      recorder.retired(arguments.back());
    }
  }
  recorder.begin(arguments, written, copies);
}

void Session::record_end(const Call& call, TraceRecorder& recorder, Nanos cost,
                         const torch::jit::Stack& stack) {
  c10::SmallVector<TraceRecorder::Result, 8> results;
  const bool would_record = !options_.record && this->would_record(call, recorder);
  const auto add = [&](const c10::TensorImpl& tensor) {
    const auto* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
    if (value_of(storage)) {
      auto* value = value_of(storage);
      if (!value->resident()) return;  // No result of this call.
      results.push_back({storage, pool_->data(static_cast<Block*>(value->data)), true});
    } else if (Block* block = block_of(storage)) {
      const void* data = pool_->data(block);
      results.push_back({data, data, would_record && would_track(call, tensor)});
    }
  };
  const c10::IValue* first = stack.data() + stack.size() - call.info.returns;
  for (std::uint32_t i = 0; i < call.info.returns; ++i) {
    for_each_tensor(first[i], [&](const c10::TensorImpl& tensor, std::uint16_t) {
      if (tensor.has_storage()) add(tensor);
    });
  }
  for (const TensorArgument& argument : call.arguments) {
    if (!argument.written || call.info.fresh || call.info.shape_only) continue;
    const void* key = key_of(argument.storage);
    const bool tracked = options_.record ? value_of(argument.storage) != nullptr
                                         : would_record && recorder.tracks(key);
    results.push_back({key, nullptr, tracked});
  }
  recorder.end(call.info, cost, results);
  if (recorder.length() > kLongestWatch) end_watch(Watch::kLong);
  if (!options_.record && (call.foreign || call.info.shares)) {
    for (const TensorArgument& argument : call.arguments) {
      if (recorder.tracks(key_of(argument.storage))) recorder.froze(key_of(argument.storage));
    }
  }
  for (const TraceRecorder::Result& result : results) {
    if (!result.tracked || !result.data || !options_.record) continue;
    Value* value = value_of(static_cast<const c10::StorageImpl*>(result.key));
    value->name = recorder.name_of(result.key);
  }
}

}  // namespace dtr
