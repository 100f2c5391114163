// Knows the calls whose results are too small to be values (engine/rules.h), before they run.
//
// Such a call needs no recipe, which would be made, with the generator's state if the call draws,
// and thrown away. The same operator on the same shapes makes the same sizes, so one such call
// tells of the next. If sizes vary, as in an operator that packs as many items as a tensor's
// content says, one call's large results get no recipe. From then on the operator's large results
// do. Cost: a hash of the shapes, which UsualTimes needs too, and one look-up without a lock. A
// call overwrites another in its slot.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>

#include "runtime/csrc/live/machine/usual_times.h"
#include "runtime/csrc/live/operators/operators.h"

namespace dtr {

class SmallResults {
 public:
  bool expected(const OperatorInfo& info, UsualTimes::Key key) const {
    return key != 0 && slot(key).load(std::memory_order_relaxed) == key && !info.varies;
  }
  // Leaves out writes, other libraries and compiled graphs: more depends on their recipes.
  void add(const OperatorInfo& info, UsualTimes::Key key) {
    if (info.writes || info.others || info.listed) return;
    slot(key).store(key, std::memory_order_relaxed);
  }

 private:
  using Slot = std::atomic<UsualTimes::Key>;
  static constexpr std::size_t kSlots = 1024;

  const Slot& slot(UsualTimes::Key key) const { return slots_[key % kSlots]; }
  Slot& slot(UsualTimes::Key key) { return slots_[key % kSlots]; }

  std::array<Slot, kSlots> slots_{};
};

}  // namespace dtr
