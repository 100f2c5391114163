// Finds orphans: resident values that the program has dropped and from which no wanted value was
// made. With Heuristic::orphans_first they are evicted before all others, because they are needed
// again only if another value is evicted. The largest goes first, of 256 at most.
//
// A missing value is wanted while the program holds it, or while a wanted value was made from it.
// Each value counts the wanted values that were made from it. For example, C was made from B and B
// from A, all are missing, and the program holds C alone. Then A and B are wanted. When A and B
// have been computed again, A is an orphan; B is not, because C is wanted.
//
// Cost: one count for each input when a value is lost, returns or is dropped; for an eviction, a
// look at the last 256 orphans of the list: a long recomputation of small tensors leaves tens of
// thousands. Views of each other may form cycles in the graph (graph/neighbours.h), in which
// unwanted values keep each other wanted; such orphans are evicted by their score. A stepping stone
// (stepping_stones.h) is no orphan.

#pragma once

#include <vector>

#include "runtime/csrc/policy/columns.h"

namespace dtr {

class Orphans {
 public:
  Orphans(const ScoreColumns& candidates, bool on) : columns_(candidates), on_(on) {}

  // Call when the value became resident, missing or dropped, or what wants it changed.
  void changed(Value& value);
  // Call before an operator's first run, with its inputs linked to missing outputs.
  void linked(Op& op);
  void file(Value& value);  // Adds it to the list of orphans, or removes it.
  // The largest of up to 256 evictable ones, or null; of equals, the last to become evictable.
  Value* next() const;
  void check(const Value& value) const;  // Throws std::logic_error if inconsistent.

 private:
  const ScoreColumns& columns_;
  const bool on_;
  std::vector<Value*> orphans_;  // All of them are candidates.
  std::vector<Value*> changed_;  // Values that changed() has yet to visit.
};

}  // namespace dtr
