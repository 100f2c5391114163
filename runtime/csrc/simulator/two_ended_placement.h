// Places blocks at the two ends of the pool, for studies. The high end gets values that cannot be
// evicted and values that are expensive, that is above the running median of time per byte. The low
// end gets cheap values, so that they lie side by side and can be evicted together.

#pragma once

#include <algorithm>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/simulator/schedule.h"
#include "runtime/csrc/simulator/simulation.h"

namespace dtr {

class TwoEndedPlacement {
 public:
  static constexpr std::int64_t kTemporary = -1, kFromOutside = -2;  // For of(): not a result.

  TwoEndedPlacement(const Schedule& schedule, Placement placement)
      : schedule_(schedule), placement_(placement) {}

  Place of(std::int64_t op, std::int64_t tensor) const {
    if (placement_ == Placement::kBestFit) return Place::kBestFit;
    if (tensor == kTemporary) return Place::kLow;
    if (tensor == kFromOutside || !schedule_.tracked(tensor)) return Place::kHigh;
    return price(op) > median_ ? Place::kHigh : Place::kLow;
  }

  // Moves the median by up to 2 % towards the operator's time per byte. So in the long run, as many
  // operators lie above the median as below.
  void learn(std::int64_t op) {
    const double now = price(op);
    if (median_ == 0) median_ = now;
    median_ = std::clamp(now, median_ / 1.02, median_ * 1.02);
  }

 private:
  double price(std::int64_t op) const {
    Bytes made = 0;
    for (std::int64_t tensor = schedule_.op_results_begin[op];
         tensor < schedule_.op_results_begin[op + 1]; ++tensor) {
      made += schedule_.tensor_size[tensor];
    }
    return static_cast<double>(schedule_.op_cost[op]) /
           static_cast<double>(std::max(made, Bytes{1}));
  }

  const Schedule& schedule_;
  const Placement placement_;
  double median_ = 0;  // The running median, in nanoseconds a byte.
};

}  // namespace dtr
