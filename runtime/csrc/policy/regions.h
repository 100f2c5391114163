// Maintains the exact evicted neighbourhood e* (paper, section 4.1) incrementally. Each resident
// value has two regions, of the missing values that it reaches through missing ones alone: forward
// (made from it) and backward (needed to compute it). The rim of a region is the resident values
// around it. A score reads a running sum. The work is done when a value is lost or comes back:
//
// - lost: each resident value on one of its rims absorbs it and its region on the other side;
// - comes back: its own regions, and those of all values on their rims, are walked again.
//
// A value reached both ways counts twice, and a cost is that at the time of adding (it grows when a
// view is attached to a missing value): both as in the reference simulator. Constants are never
// evicted, so they have no region and are on no rim. Cost: O(region) for each change, against
// O(neighbours) for evicted classes; for studies and small graphs.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/csrc/graph/graph.h"

namespace dtr {

struct Region {
  struct Side {
    std::vector<Value*> interior, rim;
    Nanos cost = 0ns;  // Sum over the interior.
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
  void check(const Value& value) const;  // Compares with a fresh walk.

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
