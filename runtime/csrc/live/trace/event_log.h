// What was evicted, recomputed and swapped, and when, for a person who looks at a profile
// (runtime/scope/chrome_trace.py). Nothing is kept until somebody asks; then about 60 bytes an
// event.

#pragma once

#include <chrono>
#include <vector>

#include "dtr_alloc/pool/csrc/units.h"
#include "runtime/csrc/live/operators/operators.h"

namespace dtr {

class EventLog {
 public:
  enum class Kind { kEvicted, kRecomputed, kSwappedOut, kSwappedIn };
  struct Event {
    Kind kind;
    Nanos at, duration;           // By the system's clock, as a profiler's times are.
    const OperatorInfo* made_by;  // Null of what was swapped.
    Bytes size, live;             // Of the value; of the pool, afterwards.
  };

  void keep() { keeps_ = true; }
  static Nanos now() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<Nanos>(now);
  }
  Nanos begin() const { return keeps_ ? now() : 0ns; }
  void evicted(const OperatorInfo& made_by, Bytes size, Bytes live) {
    if (keeps_) events_.push_back({Kind::kEvicted, now(), 0ns, &made_by, size, live});
  }
  void recomputed(const OperatorInfo& by, Nanos at, Nanos duration, Bytes size, Bytes live) {
    if (keeps_) events_.push_back({Kind::kRecomputed, at, duration, &by, size, live});
  }
  void swapped(Kind kind, Nanos at, Bytes size, Bytes live) {
    if (keeps_) events_.push_back({kind, at, now() - at, nullptr, size, live});
  }
  const std::vector<Event>& events() const { return events_; }

 private:
  bool keeps_ = false;
  std::vector<Event> events_;
};

}  // namespace dtr
