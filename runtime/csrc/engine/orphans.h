// Finds orphans: resident values that the program has dropped and from which no wanted value (see
// below) was made. With Heuristic::orphans_first, orphans are evicted before all other values,
// because only another eviction can make them needed. The largest of the 256 newest goes first.
//
// A missing value is wanted if the program holds it, or if a wanted value was made from it. Each
// value counts the wanted values that were made from it. For example, B was made from A, and C from
// B. All three are missing, and the program holds only C: then all three are wanted. Once A and B
// are recomputed, A is an orphan, since only B, now resident, was made from it. B is no orphan,
// because C is still wanted.
//
// Cost: when a value loses its content, gets it back or is dropped, a counter of each input
// changes. An eviction looks at 256 orphans at most, because a long recomputation of small tensors
// leaves tens of thousands of orphans. Since a view counts as its storage, the graph may have
// cycles (graph/neighbours.h). Missing values in a cycle keep each other wanted, so their inputs
// are not found to be orphans. A stepping stone (stepping_stones.h) is no orphan.

#pragma once

#include <vector>

#include "runtime/csrc/policy/columns.h"

namespace dtr {

class Orphans {
 public:
  Orphans(const ScoreColumns& candidates, bool on) : columns_(candidates), on_(on) {}

  void changed(Value& value);  // Call when its `data`, `home` or `want.by` changed.
  void linked(Op& op);         // Call before an operator's first run, when its inputs are linked.
  void file(Value& value);     // Lists the value if it is an orphan, else unlists it.
  Value* next() const;         // The largest of the 256 newest unlocked orphans, or null.
  void check(const Value& value) const;  // Throws std::logic_error if inconsistent.

 private:
  const ScoreColumns& columns_;
  const bool on_;
  std::vector<Value*> orphans_;  // All have a row in the columns.
  std::vector<Value*> changed_;  // Values that changed() has yet to visit.
};

}  // namespace dtr
