// Records a session's traces: begins and ends recordings, and tells the recorder (trace_recorder.h)
// which storages are an operator's arguments and results.
//
// A trace is recorded when the user asks for one. Also, the first steps of a scope on the host that
// has no swap are recorded (the watch), so that an error can say which budget would suffice
// (runtime/scope/advice.py). The watch ends after some steps or operators, so a long run pays
// little. In a session without recipes (dtr_alloc.measure), the recorder works out which values a
// scope with a budget could recompute, and which constants it would copy before writes.
//
// Functions that begin or end a recording, or return its records, are called with the engine's lock
// held. Any thread may call recorder() without this lock; a recorder has its own mutex.

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
  // The optimizers' steps to watch: enough for a GAN, whose critic steps more often.
  static constexpr std::int64_t kWatchedSteps = 12;

  // `recipes`: whether the session records recipes.
  SessionTrace(bool recipes, const StorageTable& storages)
      : recipes_(recipes), storages_(storages) {}

  TraceRecorder* recorder() const { return recorder_; }  // Null while no trace is recorded.
  const std::atomic<TraceRecorder*>& now() const { return recorder_; }

  void start();  // Throws c10::Error if a trace is being recorded.
  TraceRecorder::Records take();

  void watch();
  void end_watch(Watch why);
  struct Seen {
    TraceRecorder::Records records;
    std::int64_t steps;  // Number of optimizers' steps.
    Watch watch;         // Why the watch ended, or that it is on or off.
  };
  Seen seen() const;
  void stepped();

  // Whether a storage is tracked, or would be tracked if this session recorded recipes.
  bool tracks(const c10::StorageImpl* storage) const;

  // begin() is called before an operator runs, and end() after it, in the operator's thread.
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
  std::atomic<TraceRecorder*> recorder_{nullptr};  // Written with the engine's mutex held.

  // Guarded by: the engine's mutex
  std::vector<std::unique_ptr<TraceRecorder>> recorders_;  // Other threads may use old recorders.
  TraceRecorder::Name last_name_ = 0;                      // The last name in earlier recordings.
  TraceRecorder* watched_ = nullptr;                       // The watch's recorder; null before.
  std::int64_t steps_ = 0;                                 // Steps watched so far.
  Watch watch_ = Watch::kOff;
};

}  // namespace dtr
