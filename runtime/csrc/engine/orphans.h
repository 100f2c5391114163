// Finds orphans: resident values that the program has dropped and from which no wanted value was
// made. With Heuristic::orphans_first they are evicted before all other values, because they are
// needed again only after another eviction. The largest of up to 256 is evicted first.
//
// A missing value is wanted while the program holds it, or while a wanted value was made from it.
// Each value counts the wanted values that were made from it. For example, B was made from A and C
// from B, all are missing, and the program holds only C. Then all are wanted. When A and B are
// recomputed, A is an orphan; B is not, because C is still wanted.
//
// Cost: one counter for each input when a value is lost, returns or is dropped. An eviction looks
// at 256 orphans at most, because a long recomputation of small tensors leaves tens of thousands.
// Views of each other may form cycles in the graph (graph/neighbours.h). Missing values in a cycle
// keep each other wanted, so their inputs are not found to be orphans. A stepping stone
// (stepping_stones.h) is no orphan.

#pragma once

#include <vector>

#include "runtime/csrc/policy/columns.h"

namespace dtr {

class Orphans {
 public:
  Orphans(const ScoreColumns& candidates, bool on) : columns_(candidates), on_(on) {}

  // Call when the value became resident, missing or dropped, or its Want::by changed.
  void changed(Value& value);
  // Call before an operator's first run: its inputs are linked, its outputs still missing.
  void linked(Op& op);
  void file(Value& value);  // Lists the value if it is an orphan, else unlists it.
  // The largest of the last 256 unlocked orphans, or null; of equals, the last to become evictable.
  Value* next() const;
  void check(const Value& value) const;  // Throws std::logic_error if inconsistent.

 private:
  const ScoreColumns& columns_;
  const bool on_;
  std::vector<Value*> orphans_;  // All have a row in the columns.
  std::vector<Value*> changed_;  // Values that changed() has yet to visit.
};

}  // namespace dtr
