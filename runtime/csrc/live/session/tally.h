// Counts what a session does, and keeps how long operators take. The engine's lock guards all
// members but `costs`, `small` and `steps`.

#pragma once

#include <atomic>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/csrc/live/machine/operator_costs.h"
#include "runtime/csrc/live/machine/thrash_watch.h"
#include "runtime/csrc/live/machine/ticks.h"
#include "runtime/csrc/live/machine/usual_times.h"
#include "runtime/csrc/live/operators/operators.h"
#include "runtime/csrc/live/recipes/small_results.h"

namespace dtr {

// What the budget has cost the program since the previous step of an optimizer.
struct StepCosts {
  Bytes evicted = 0;  // Bytes evicted to make room for requests.
  Nanos added = 0ns;  // Time to recompute values and to search for memory.
};

// Estimates an operator's time on a device: five microseconds to launch, and memory traffic at 2
// TB/s. Matrix products and convolutions take longer, but their times are measured after one step.
inline Nanos estimate(Bytes bytes) { return 5us + Nanos{bytes / 2000}; }

struct Tally {
  Tally(DeviceWork* work, double thrash_limit)
      : costs(work ? std::make_unique<Costs>(*work) : nullptr), thrash(thrash_limit, !work) {}

  // Estimates the time to work on `bytes`, by the average time per byte of all operators so far.
  std::int64_t usual_ticks(Bytes bytes) const {
    if (touched_bytes == 0) return to_ticks(estimate(bytes));
    return static_cast<std::int64_t>(static_cast<double>(kernel_ticks) * bytes / touched_bytes);
  }

  const std::unique_ptr<Costs> costs;          // Times of operators on a device; null on the host.
  UsualTimes usual;                            // Times of operators on the host.
  SmallResults small;                          // Calls that need no recipe.
  std::unordered_set<std::uint64_t> compiled;  // Keys of compiled code that has run (hold.h).
  ThrashWatch thrash;
  std::int64_t operators = 0, recorded = 0, verified = 0;
  std::int64_t kernel_ticks = 0, remat_ticks = 0, bookkeeping_ticks = 0;
  Bytes touched_bytes = 0, largest_hold = 0, evicted_for_room = 0;
  StepCosts at_last_step;
  std::vector<std::int64_t> timeline;
  std::atomic<std::int64_t> steps{0};
  // For each operator, the bytes of the largest call that debug mode has run twice.
  std::unordered_map<const OperatorInfo*, Bytes> repeated;
};
}  // namespace dtr
