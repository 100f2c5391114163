#include "runtime/csrc/live/session/session_trace.h"

#include <algorithm>

#include "runtime/csrc/engine/rules.h"
#include "runtime/csrc/live/recipes/call.h"
#include "runtime/csrc/live/storages/storage_table.h"

namespace dtr {
namespace {

// Integers: 8 MiB, some 50,000 operators.
constexpr std::size_t kLongestWatch = std::size_t{1} << 20;

}  // namespace

void SessionTrace::record_from_now() {
  recorders_.push_back(std::make_unique<TraceRecorder>(last_name_, recipes_));
  recorder_ = recorders_.back().get();
}

void SessionTrace::watch() {
  record_from_now();
  watched_ = recorder_;
  watch_ = Watch::kOn;
}

void SessionTrace::end_watch(Watch why) {
  if (watch_ != Watch::kOn) return;
  watch_ = why;
  recorder_ = nullptr;
  last_name_ = watched_->last();
}

SessionTrace::Seen SessionTrace::seen() const {
  if (!watched_) return {{}, 0, Watch::kOff};
  return {watched_->copy(), steps_, watch_};
}

void SessionTrace::stepped() {
  if (TraceRecorder* recorder = recorder_) recorder->mark(TraceRecorder::kStep);
  if (watch_ == Watch::kOn && ++steps_ == kWatchedSteps) end_watch(Watch::kOver);
}

void SessionTrace::start() {
  end_watch(Watch::kTraced);
  TORCH_CHECK(!recorder_.load(), "a trace is being recorded already; traces do not nest");
  record_from_now();
}

TraceRecorder::Records SessionTrace::take() {
  TraceRecorder* recorder = watch_ == Watch::kOn ? nullptr : recorder_.exchange(nullptr);
  TORCH_CHECK(recorder, "no trace is being recorded");
  TraceRecorder::Records records = recorder->take();
  last_name_ = recorder->last();
  return records;
}

bool SessionTrace::tracks(const c10::StorageImpl* storage) const {
  if (recipes_) return StorageTable::tracked(storage);
  TraceRecorder* recorder = recorder_;
  return recorder && recorder->tracks(storages_.key_of(storage));
}

// In a scope where nothing is: what Interception::prepare_writes() would do.
bool SessionTrace::would_record(const Call& call, TraceRecorder& recorder) const {
  if (recipes_) return false;
  if (!call.recordable || call.info.fresh) return call.recordable;
  bool versions = false, small = true;
  for (const TensorArgument& argument : call.arguments) {
    if (!argument.written) continue;
    const bool tracked = recorder.tracks(storages_.key_of(argument.storage));
    versions |= tracked && call.outweighs_state(storages_.device(), argument.storage);
    small &= tracked || copied_before_a_write(bytes_of(argument.storage));
  }
  return versions && small;
}

void SessionTrace::begin(const Call& call, TraceRecorder& recorder) {
  c10::SmallVector<const void*, 8> arguments;
  c10::SmallVector<std::int64_t, 8> written;
  for (const TensorArgument& argument : call.arguments) {
    if (call.info.shape_only) break;
    const void* key = storages_.key_of(argument.storage);
    if (argument.written && !call.info.fresh) {
      written.push_back(static_cast<std::int64_t>(arguments.size()));
      if (!recipes_ && !recorder.tracks(key)) {
        recorder.overwritten(key, bytes_of(argument.storage));
      }
    } else if (argument.written && !recipes_ && recorder.tracks(key)) {
      recorder.froze(key);  // As Interception::freeze_written() would.
    }
    arguments.push_back(key);
  }
  recorder.begin(arguments, written, copied_statistics(call));
}

// Statistics that are written beside results are constants by now. A replay writes a copy of each.
c10::SmallVector<Bytes, 4> SessionTrace::copied_statistics(const Call& call) const {
  c10::SmallVector<Bytes, 4> copies;
  const bool recording = recipes_ ? call.recording : call.recordable;
  if (!recording || !call.info.fresh || call.info.shape_only) return copies;
  c10::SmallVector<const c10::StorageImpl*, 4> seen;
  for (const TensorArgument& argument : call.arguments) {
    const c10::StorageImpl* storage = argument.storage;
    if (!argument.written || std::ranges::find(seen, storage) != seen.end()) continue;
    seen.push_back(storage);
    copies.push_back(static_cast<Bytes>(storage->nbytes()));
  }
  return copies;
}

void SessionTrace::end(const Call& call, TraceRecorder& recorder, Nanos cost,
                       const torch::jit::Stack& stack) {
  c10::SmallVector<TraceRecorder::Result, 8> results;
  const bool would_record = this->would_record(call, recorder);
  call.for_each_result(stack, [&](const c10::TensorImpl& tensor) {
    if (!tensor.has_storage()) return;
    const bool tracked = would_record && call.makes_value(storages_.device(), tensor);
    if (auto found = fresh_result(storage_of(tensor), tracked)) results.push_back(*found);
  });
  for (const TensorArgument& argument : call.arguments) {
    if (!argument.written || call.info.fresh || call.info.shape_only) continue;
    const void* key = storages_.key_of(argument.storage);
    const bool tracked =
        recipes_ ? StorageTable::tracked(argument.storage) : would_record && recorder.tracks(key);
    results.push_back({key, nullptr, tracked});
  }
  recorder.end(call.info, cost, results);
  if (recorder.length() > kLongestWatch) end_watch(Watch::kLong);
  recipes_ ? name_values(results, recorder) : freeze_arguments(call, recorder);
}

// Where nothing is recorded by recipes, `tracked` says whether a recipe would be.
std::optional<TraceRecorder::Result> SessionTrace::fresh_result(const c10::StorageImpl* storage,
                                                                bool tracked) const {
  if (const Value* value = StorageTable::value_of(storage)) {
    if (!value->resident()) return {};  // No result of this call.
    return TraceRecorder::Result{storage, storages_.data_of(*value), true};
  }
  const Block* block = storages_.block_of(storage);
  if (!block) return {};
  const void* data = storages_.data_of(*block);
  return TraceRecorder::Result{data, data, tracked};
}

void SessionTrace::name_values(c10::ArrayRef<TraceRecorder::Result> results,
                               TraceRecorder& recorder) {
  for (const TraceRecorder::Result& result : results) {
    if (!result.tracked || !result.data) continue;
    Value* value = StorageTable::value_of(static_cast<const c10::StorageImpl*>(result.key));
    value->name = recorder.name_of(result.key);
  }
}

// What a scope with recipes would make constant.
void SessionTrace::freeze_arguments(const Call& call, TraceRecorder& recorder) const {
  if (!call.foreign && !call.info.shares) return;
  for (const TensorArgument& argument : call.arguments) {
    const void* key = storages_.key_of(argument.storage);
    if (recorder.tracks(key)) recorder.froze(key);
  }
}

}  // namespace dtr
