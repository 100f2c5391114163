// Maintains the exact evicted neighbourhood e* (paper, section 4.1) incrementally. Each resident
// value has two regions of missing values. Its forward region has the missing values made from it,
// those made from these, and so on; its backward region has its missing inputs, their missing
// inputs, and so on. The rim of a region is the resident values around it. A score reads the sum of
// a region's costs, which is kept up to date. Regions are updated when a value
//
// - is lost: the values on its backward rim add it and its forward region to their forward regions,
//   and the values on its forward rim add it and its backward region to their backward regions;
// - comes back: its regions, and those of all values on their rims, are walked again.
//
// As in the reference simulator, a value in both regions counts twice, and a region keeps the cost
// that a value had when it was added (views attached to a missing value raise its cost). Constants
// are never evicted, so they have no region and are on no rim. A change costs O(region), in
// evicted_classes.h only O(neighbours). So regions are for studies and small graphs.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/csrc/graph/graph.h"

namespace dtr {

struct Region {
  struct Side {
    std::vector<Value*> interior, rim;
    Nanos cost = 0ns;  // The sum over `interior`.
  };
  Side forward, backward;
};

class Regions {
 public:
  void lost(Value& value);
  void returned(Value& value) { back_.push_back(&value); }
  void refresh();
  void cut(Value& value);

  static Nanos ancestors(const Value& value) {
    return value.region ? value.region->backward.cost : 0ns;
  }
  static Nanos descendants(const Value& value) {
    return value.region ? value.region->forward.cost : 0ns;
  }

  static void forget(Value& value) { delete std::exchange(value.region, nullptr); }

  std::int64_t accesses() const { return accesses_; }
  void check(const Value& value) const;  // Throws if a new walk finds another region.

 private:
  using Direction = Region::Side Region::*;

  template <typename Visit>
  static void for_each_neighbour(Direction direction, Value& value, Visit visit);
  template <typename Add>
  void for_each_new(const std::vector<Value*>& into, const std::vector<Value*>& from, Add add);
  void rebuild(Direction direction, Value& value);
  void absorb(Direction direction, Value& absorber, Value& lost);
  template <typename IsNew>
  static void walk(Direction direction, Value& value, Region::Side& side, IsNew is_new);
  void collect_missing(Direction direction, Value& value, Region::Side& side);
  void cut_missing(Value& value);

  std::vector<Value*> back_;  // Values that came back since the last refresh.
  std::uint64_t stamp_ = 0;
  std::int64_t accesses_ = 0;
};

}  // namespace dtr
