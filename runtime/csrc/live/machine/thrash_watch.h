// Detects a budget so far below the program's need that the program, instead of failing, would
// recompute for ever. Compares the time of recomputations with that of the program's own operators.
// A comparison covers a window of at least two seconds and a hundred operators, so that one long
// recomputed chain does not count as thrashing.

#pragma once

#include <cstdint>
#include <optional>

#include "runtime/csrc/live/machine/ticks.h"

namespace dtr {

class ThrashWatch {
 public:
  // `limit`: the largest allowed ratio of recomputing to computing time; 0 allows any ratio.
  explicit ThrashWatch(double limit) : limit_(limit) {}

  void computed(std::int64_t ticks) { computed_ += ticks, ++operators_; }
  void recomputed(std::int64_t ticks) { recomputed_ += ticks; }

  // If the window is complete, begins the next, and returns the ratio if it is above the limit.
  std::optional<double> exceeded() {
    constexpr std::int64_t kOperators = 100;
    constexpr Nanos kTime = 2s;
    if (operators_ < kOperators || limit_ == 0) return {};
    if (to_nanoseconds(recomputed_ + computed_) < kTime) return {};
    const double ratio = static_cast<double>(recomputed_) / static_cast<double>(computed_ + 1);
    recomputed_ = computed_ = operators_ = 0;
    return ratio > limit_ ? std::optional(ratio) : std::nullopt;
  }

 private:
  const double limit_;
  std::int64_t recomputed_ = 0, computed_ = 0, operators_ = 0;  // In the current window.
};

}  // namespace dtr
