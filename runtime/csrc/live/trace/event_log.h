// Logs what is evicted, recomputed and swapped, and when, for display beside a profile
// (runtime/scope/chrome_trace.py). Logs nothing until keep() is called; from then on, an event
// takes about 60 bytes.

#pragma once

#include <chrono>
#include <vector>

#include "dtr_alloc/pool/csrc/memory.h"
#include "runtime/csrc/live/operators/operators.h"

namespace dtr {

class EventLog {
 public:
  enum class Kind { kEvicted, kRecomputed, kSwappedOut, kSwappedIn };
  struct Event {
    Kind kind;
    Nanos at, duration;           // By the system's clock, as a profiler's times are.
    const OperatorInfo* made_by;  // The value's operator; null for a swap.
    Bytes size;                   // The value's size, or the sum if one replay made several.
    Bytes live = 0;               // Bytes in use in the session's memory, after the event.
  };

  explicit EventLog(const Memory& memory) : memory_(memory) {}

  void keep() { keeps_ = true; }
  static Nanos now() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<Nanos>(now);
  }
  Nanos begin() const { return keeps_ ? now() : 0ns; }
  void evicted(const OperatorInfo& made_by, Bytes size) {
    if (keeps_) add({Kind::kEvicted, now(), 0ns, &made_by, size});
  }
  void recomputed(const OperatorInfo& by, Nanos at, Nanos duration, Bytes size) {
    if (keeps_) add({Kind::kRecomputed, at, duration, &by, size});
  }
  void swapped(Kind kind, Nanos at, Bytes size) {
    if (keeps_) add({kind, at, now() - at, nullptr, size});
  }
  const std::vector<Event>& events() const { return events_; }

 private:
  void add(Event event) {
    event.live = memory_.live();  // May take a lock, so is read only if events are kept.
    events_.push_back(event);
  }

  const Memory& memory_;
  bool keeps_ = false;
  std::vector<Event> events_;
};

}  // namespace dtr
