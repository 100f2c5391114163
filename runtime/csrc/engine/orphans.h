// Orphans: what the program has let go, and what nothing that is still wanted rests on. With
// Heuristic::orphans_first they go before everything else, because nobody will miss them unless
// another value goes first. The largest goes first, of 256 at most.
//
// A missing value is wanted while the program holds it, or while a wanted value was made from it.
// So a value counts the wanted values that were made from it, and the count of a missing one goes
// on to its inputs. For example, C was made from B and B from A, the program holds C alone, and C
// is missing. Then A and B are wanted. When A and B have been computed again, A is an orphan.
//
// A loss, a return or a drop costs a count for each input, and an eviction a look at 256 orphans
// from the end of their list: a long recomputation of small tensors leaves tens of thousands.
// Where values are views of each other their graph may have cycles (graph/neighbours.h), in which
// values that nobody wants keep each other wanted: such orphans go by their score. A stepping stone
// (stepping_stones.h) is no orphan.

#pragma once

#include <vector>

#include "runtime/csrc/policy/columns.h"

namespace dtr {

class Orphans {
 public:
  Orphans(const ScoreColumns& candidates, bool on) : columns_(candidates), on_(on) {}

  // Something about it has changed: whether it is there, or held, or what wants it.
  void changed(Value& value);
  // An operator that is about to run for the first time has linked its inputs to missing outputs.
  void linked(Op& op);
  void file(Value& value);  // Puts it into the list of orphans, or takes it out.
  // The largest of some that may go, or null; among equals the one that became evictable last.
  Value* next() const;
  void check(const Value& value) const;  // Throws std::logic_error with a sentence.

 private:
  const ScoreColumns& columns_;
  const bool on_;
  std::vector<Value*> orphans_;  // Among the candidates.
  std::vector<Value*> changed_;  // What changed() has yet to look at.
};

}  // namespace dtr
