// Detects a budget so far below the program's need that the program, instead of failing, would
// recompute for ever. Compares the time of recomputations with that of the program's own operators.
// A comparison covers a window of at least two seconds and a hundred operators, so that one long
// recomputed chain does not count as thrashing. Recomputations count for at most the processor time
// of this process in the window: it may have been suspended, or starved by others.

#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <optional>

#include "runtime/csrc/live/machine/ticks.h"

namespace dtr {

class ThrashWatch {
 public:
  // `limit`: the largest allowed ratio of recomputing to computing time; 0 allows any ratio.
  // `on_host`: whether the given times are this process's own. A device's are not.
  ThrashWatch(double limit, bool on_host) : limit_(limit), on_host_(on_host) {}

  void computed(std::int64_t ticks) { computed_ += ticks, ++operators_; }
  void recomputed(std::int64_t ticks) { recomputed_ += ticks; }

  // If the window is complete, begins the next, and returns the ratio if it is above the limit.
  std::optional<double> exceeded() {
    constexpr std::int64_t kOperators = 100;
    constexpr Nanos kTime = 2s;
    if (operators_ < kOperators || limit_ == 0) return {};
    if (to_nanoseconds(recomputed_ + computed_) < kTime) return {};
    const std::clock_t processor = std::clock();
    const Nanos spent = (processor - began_) * (Nanos(1s) / CLOCKS_PER_SEC);
    const std::int64_t again = on_host_ ? std::min(recomputed_, to_ticks(spent)) : recomputed_;
    if (to_nanoseconds(again + computed_) < kTime) return {};
    const double ratio = static_cast<double>(again) / static_cast<double>(computed_ + 1);
    recomputed_ = computed_ = operators_ = 0;
    began_ = processor;
    return ratio > limit_ ? std::optional(ratio) : std::nullopt;
  }

 private:
  const double limit_;
  const bool on_host_;
  std::clock_t began_ = std::clock();  // This process's CPU time when the window began.
  std::int64_t recomputed_ = 0, computed_ = 0, operators_ = 0;  // In the current window.
};

}  // namespace dtr
