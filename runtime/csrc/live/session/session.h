// Serves one scope, as the engine's live Executor. Owns the memory and the engine, and connects the
// parts that give each operator of the program its memory and its recipe:
//
//   Scope           decides when and in which threads a session is active
//   MemoryRequests  serves requests for memory, and keeps the budget
//   StorageTable    maps storages to values
//   Constants       keeps the untracked storages that recipes read
//   Replayer        runs a recipe again
//   SessionSwap     moves values to the host's memory or to a file, and back
//   SessionTrace    records traces of the program
//   Notes, Tally    keep texts for the user, and counters
//
// Class Interception handles an operator; by_hand.h has what a user calls by hand.

#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "runtime/csrc/live/machine/device.h"
#include "runtime/csrc/live/session/locks.h"
#include "runtime/csrc/live/session/memory_requests.h"
#include "runtime/csrc/live/session/notes.h"
#include "runtime/csrc/live/session/options.h"
#include "runtime/csrc/live/session/scope.h"
#include "runtime/csrc/live/session/session_swap.h"
#include "runtime/csrc/live/session/session_trace.h"
#include "runtime/csrc/live/session/stats.h"
#include "runtime/csrc/live/session/tally.h"
#include "runtime/csrc/live/storages/constants.h"
#include "runtime/csrc/live/storages/replayer.h"
#include "runtime/csrc/live/trace/event_log.h"

namespace dtr {

class Session final : public Executor {
 public:
  Session(const SessionOptions& options, SessionDevice device, Memory::Handle memory);

  static Session* active() { return Scope::active(); }

  const SessionOptions& options() const { return options_; }
  const SessionDevice& device() const { return device_; }
  Memory& memory() { return *memory_; }
  Engine& engine() { return engine_; }
  Locks& locks() { return locks_; }
  Scope& scope() { return scope_; }
  StorageTable& storages() { return storages_; }
  Constants& constants() { return constants_; }
  MemoryRequests& requests() { return requests_; }
  Replayer& replayer() { return replayer_; }
  SessionSwap& swap() { return session_swap_; }
  SessionTrace& trace() { return trace_; }
  MutationDetector* detector() { return detector_.get(); }  // Null outside debug mode.
  EventLog& events() { return *events_; }
  Notes& notes() { return notes_; }
  Tally& tally() { return tally_; }
  // The generator's state, the same object if unchanged. Needs a Turn and the generator's mutex.
  std::shared_ptr<const RandomState> random_state(at::Generator& generator);

  void bring_back(Value& value, Lock& lock);
  void freed(const void* data);  // Called by the deleter of untracked tensors.
  void watch_for_thrash();
  void begin_capture();
  void end_capture() { requests_.capture_ended(); }
  void lock_for_fork();
  void unlock_after_fork();

  void watch();  // Records a trace of the next steps, for advice (session_trace.h).
  SessionTrace::Seen seen() const;
  void start_trace();
  TraceRecorder::Records take_trace();
  // Ends an optimizer's step and returns its costs. In a thread outside the scope, only counts it.
  std::optional<StepCosts> step();

  SessionStats stats() const;
  std::vector<std::int64_t> timeline() const;
  void check() const;

  // Overrides of Executor.
  void recompute(Op& op, Lock& lock) override;
  void release(Value& value, Loss loss) override;
  void make_ordinary(Value& value) override;
  std::pair<Bytes, Bytes> free_neighbours(const Value& value) const override {
    const Pool* pool = pool_of_values();
    return pool ? pool->free_neighbours(block_of(value)) : std::pair<Bytes, Bytes>();
  }
  const Pool* pool_of_values() const override { return memory_->pool(); }
  bool kept_for_recipes(const Value& constant) const override {
    return Constants::kept_for_recipes(constant);
  }
  void forget(Value& value) override { constants_.forget(value); }
  Op* reload_for(const Value& value) override { return swap_->place_for(value.size); }
  void forget(Op& op) override { op.reload ? swap_->forget(op) : Recipe::of(op).destroy(); }

 private:
  // Guarded by: nothing: set before the scope opens
  const SessionOptions options_;
  const SessionDevice device_;
  const std::unique_ptr<MutationDetector> detector_;
  const Memory::Handle memory_;

  // Guarded by: nothing: set before the scope opens
  // Only the contents of these objects change; the header of each class says what guards them.
  const std::shared_ptr<EventLog> events_{std::make_shared<EventLog>(options_.events)};
  SessionTrace trace_;
  Notes notes_{options_.strict};
  Locks locks_{engine_, storages_};

  // Guarded by: the engine's mutex
  // Except the tally's `costs`, `small` and `steps`.
  Engine engine_;
  StorageTable storages_;
  Tally tally_;
  const std::unique_ptr<Swap> swap_;  // Null if there is none.
  Constants constants_;
  Replayer replayer_;
  SessionSwap session_swap_;
  TraceRecorder* locked_recorder_ = nullptr;  // The recorder whose mutex is locked for a fork.

  // Guarded by: nothing: set before the scope opens
  // Each header says what guards the contents.
  MemoryRequests requests_;
  Scope scope_;

  // Guarded by: the turn
  std::shared_ptr<const RandomState> last_random_;
};

}  // namespace dtr
