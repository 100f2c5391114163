// The traces of a session: which storages an operator has for arguments and results
// (trace_recorder.h), who asked for the recording, and when it ends.
//
// Besides the traces that the user asks for, the first steps of every scope are recorded, and kept
// for an error that is to say which budget would do (runtime/scope/advice.py). That watch ends
// after some steps or operators, so a long run pays little for it. Where nothing is recorded by
// recipes (measure), the operators, their results and what is made of what say what a scope with a
// budget could recompute, and which constants it would copy before they are written.
//
// The engine's lock is held where a recording begins or ends, or is asked what it saw. Any thread
// sees without it whether there is one, and a recorder has a mutex of its own.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/csrc/live/trace/trace_recorder.h"

namespace dtr {

struct Call;
class StorageTable;

class SessionTrace {
 public:
  enum class Watch { kOff, kOn, kOver, kThreads, kLong, kTraced };
  // Of optimizers: a generator may have one for several of its critic's.
  static constexpr std::int64_t kWatchedSteps = 12;

  // `recipes`: whether the session records any.
  SessionTrace(bool recipes, const StorageTable& storages)
      : recipes_(recipes), storages_(storages) {}

  TraceRecorder* recorder() const { return recorder_; }  // Null while nothing is recorded.
  const std::atomic<TraceRecorder*>& now() const { return recorder_; }

  void start();  // Throws std::runtime_error where a trace is being recorded.
  TraceRecorder::Records take();

  void watch();
  void end_watch(Watch why);
  struct Seen {
    TraceRecorder::Records records;
    std::int64_t steps;  // Of optimizers.
    Watch watch;         // What ended it.
  };
  Seen seen() const;
  void stepped();

  // Whether a storage is tracked, or would be where nothing is recorded by recipes.
  bool tracks(const c10::StorageImpl* storage) const;

  // Around a run of an operator, in the thread that runs it.
  void begin(const Call& call, TraceRecorder& recorder);
  void end(const Call& call, TraceRecorder& recorder, Nanos cost, const torch::jit::Stack& stack);

 private:
  void record_from_now();
  c10::SmallVector<Bytes, 4> copied_statistics(const Call& call) const;
  std::optional<TraceRecorder::Result> fresh_result(const c10::StorageImpl* storage,
                                                    bool tracked) const;
  static void name_values(c10::ArrayRef<TraceRecorder::Result> results, TraceRecorder& recorder);
  void freeze_arguments(const Call& call, TraceRecorder& recorder) const;
  bool would_record(const Call& call, TraceRecorder& recorder) const;

  // Guarded by: nothing: const
  const bool recipes_;
  const StorageTable& storages_;

  // Guarded by: nothing: atomic
  std::atomic<TraceRecorder*> recorder_{nullptr};  // Written under the engine's mutex.

  // Guarded by: the engine's mutex
  std::vector<std::unique_ptr<TraceRecorder>> recorders_;  // Other threads may still use old ones.
  TraceRecorder::Name last_name_ = 0;                      // Of the recordings before.
  TraceRecorder* watched_ = nullptr;                       // Null before.
  std::int64_t steps_ = 0;                                 // That were watched.
  Watch watch_ = Watch::kOff;
};

}  // namespace dtr
