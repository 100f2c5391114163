// Logs what happens to a session's memory: each block that is made, freed, evicted or recomputed,
// when, by which operator, and for which line of the program. All pictures of a run are made of it
// (runtime/scope/memory_history.py).
//
// The memory itself reports its blocks (BlockWatcher), in the order in which live() changes, so a
// replay of the log gives live() and its peak to the byte. Only the thread knows the cause of an
// event: Interception and Session set the thread's `cause`. A full log drops its oldest event, but
// keeps the allocation and last change of each live block, so that a replay starts complete.
//
// Logs nothing unless the option `events` is above 0; then an event takes 56 bytes.

#pragma once

#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "dtr_alloc/pool/csrc/memory.h"
#include "runtime/csrc/live/operators/operators.h"

namespace dtr {

class EventLog final : public BlockWatcher {
 public:
  // kEvicted comes before the block's kFreed. kEvictable and kConstant: what a block now is.
  // kRefused is a request for memory.
  enum class Kind : std::uint8_t {
    kAllocated,
    kFreed,
    kEvicted,
    kEvictable,
    kConstant,
    kRecomputed,
    kSwappedOut,
    kSwappedIn,
    kStep,
    kRefused
  };
  enum class Phase : std::uint8_t { kForward, kBackward, kOptimizer };
  using Site = std::uint16_t;  // A line of the program; 0: unknown (runtime/scope/sites.py).

  struct Cause {
    const OperatorInfo* made_by = nullptr;  // The operator; null for a reload or outside operators.
    Site site = 0;
    Phase phase = Phase::kForward;
    bool again = false;  // It recomputes, or reloads from the swap.
  };
  static constinit thread_local Cause cause;

  struct Event {
    Kind kind;
    Cause cause;
    Nanos at, duration;  // By the system's clock, as a profiler's times are.
    const void* data;    // The block's address, if it is about one.
    Bytes size;
  };

  explicit EventLog(std::int64_t most) : most_(static_cast<std::size_t>(most)) {}

  bool keeps() const { return most_ > 0; }
  static Nanos now() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<Nanos>(now);
  }
  Nanos begin() const { return keeps() ? now() : Nanos{0}; }

  void allocated(const void* data, Bytes size) override { note(Kind::kAllocated, data, size); }
  void freed(const void* data, Bytes size) override { note(Kind::kFreed, data, size); }
  void note(Kind kind, const void* data = nullptr, Bytes size = 0, const Cause& by = cause) {
    if (keeps()) add({kind, by, now(), Nanos{0}, data, size});
  }
  void lasted(Kind kind, Nanos at, Nanos duration, Bytes size, const Cause& by) {
    if (keeps()) add({kind, by, at, duration, nullptr, size});
  }
  void swapped(Kind kind, Nanos at, Bytes size) { lasted(kind, at, begin() - at, size, {}); }

  struct Kept {
    std::vector<Event> events;  // First dropped events of blocks that lived when the rest began.
    std::int64_t dropped = 0;   // Number of dropped events, those of live blocks included.
  };
  Kept kept() const;

  // The function that says which line of the program runs, for here(). Takes Python's lock.
  using Locate = Site (*)();
  static void locate_by(Locate locate) { locate_ = locate; }
  static Site here() { return locate_ ? locate_.load()() : Site{0}; }

 private:
  struct Lasting {  // A live block's dropped events: its allocation, its last change.
    Event made, became;
  };
  void add(const Event& event);
  void drop(const Event& oldest);

  static std::atomic<Locate> locate_;

  // Guarded by: nothing: const
  const std::size_t most_;

  mutable std::mutex mutex_;  // Taken last: with the memory's mutex, or the engine's, held.

  // Guarded by: mutex_
  std::vector<Event> ring_;
  std::size_t oldest_ = 0;
  std::int64_t dropped_ = 0;
  ska::flat_hash_map<const void*, Lasting> lasting_;
};

}  // namespace dtr
