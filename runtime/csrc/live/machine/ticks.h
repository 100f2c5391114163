// Reads time in the processor's ticks, and converts it to nanoseconds on request. Each operator
// takes four readings. One takes 24 ns with the system clock, and 10 ns with ticks.

#pragma once

#include <c10/util/ApproximateClock.h>

#include <chrono>
#include <cstdint>

#include "dtr_alloc/pool/csrc/units.h"

namespace dtr {

inline std::int64_t ticks() { return static_cast<std::int64_t>(c10::getApproximateTime()); }

// Returns the nanoseconds per tick, measured at the first call over about two milliseconds.
inline double nanoseconds_per_tick() {
  static const double ratio = [] {
    using Clock = std::chrono::steady_clock;
    Clock::time_point start = Clock::now();
    std::int64_t first = ticks();
    while (Clock::now() - start < std::chrono::milliseconds(2)) {
    }
    std::int64_t last = ticks();
    std::chrono::duration<double, std::nano> passed = Clock::now() - start;
    return passed.count() / static_cast<double>(last - first);
  }();
  return ratio;
}

inline Nanos to_nanoseconds(std::int64_t ticks) {
  return Nanos(static_cast<std::int64_t>(static_cast<double>(ticks) * nanoseconds_per_tick()));
}

inline std::int64_t to_ticks(Nanos nanoseconds) {
  return static_cast<std::int64_t>(static_cast<double>(nanoseconds.count()) /
                                   nanoseconds_per_tick());
}

}  // namespace dtr
