// What was evicted and recomputed, and when, for a person who looks at a profile
// (runtime/chrome_trace.py). Nothing is kept until somebody asks; then about 60 bytes an event.

#pragma once

#include <chrono>
#include <vector>

#include "dtr_alloc/csrc/units.h"
#include "runtime/csrc/live/operators.h"

namespace dtr {

class EventLog {
 public:
  struct Event {
    bool evicted;        // Else recomputed.
    Nanos at, duration;  // By the system's clock, as a profiler's times are.
    const OperatorInfo* made_by;
    Bytes size, live;  // Of what was evicted or recomputed; of the pool, afterwards.
  };

  void keep() { keeps_ = true; }
  bool keeps() const { return keeps_; }
  static Nanos now() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<Nanos>(now);
  }
  void evicted(const OperatorInfo& made_by, Bytes size, Bytes live) {
    events_.push_back({true, now(), 0ns, &made_by, size, live});
  }
  void recomputed(const OperatorInfo& by, Nanos at, Nanos duration, Bytes size, Bytes live) {
    events_.push_back({false, at, duration, &by, size, live});
  }
  const std::vector<Event>& events() const { return events_; }

 private:
  bool keeps_ = false;
  std::vector<Event> events_;
};

}  // namespace dtr
