// The exact evicted neighbourhood e* (paper, section 4.1), maintained step by step. Each resident
// value has two regions: the missing values reachable from it through missing ones alone, forward
// (what would have to be recomputed again because of it) and backward (what it rests on). A score
// reads a running sum; the work is done when a value goes or comes back:
//
// - goes: every resident value on the rim of its regions takes over its region beyond it;
// - comes back: its own regions, and those of all on their rims, are walked anew.
//
// A value reached both ways counts twice, and costs are those at the time of adding (they grow when
// a view is attached to a missing value): both as in the reference simulator. Constants never go,
// so they have no region and are on no rim. Cost: O(region) for each change, against O(neighbours)
// for evicted classes; for studies and small graphs.

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
  void check(const Value& value) const;  // Against a walk from nothing.

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

  std::vector<Value*> back_;  // Since the last refresh.
  std::uint64_t stamp_ = 0;
  std::int64_t accesses_ = 0;
};

}  // namespace dtr
