// The cost of a value's evicted neighbourhood: what must be recomputed besides the value itself if
// it goes too (paper, section 4.1). Every way in which a value loses its content enters here:
// evicted, dropped by the program, overwritten by a write, stolen by a replay.
//
// Answers, dearer as they get more exact: none; the paper's relaxation by a union-find
// (evicted_classes.h); the value's missing ancestors, as MSPS wants it (lineages.h); the exact
// neighbourhood, e* (regions.h). One more is there to be compared with (megengine_sets.h). All see
// storages: a view counts with the bytes it shares.
//
// A scope's default, kLineage, is the nearest of the ancestors. Such sums choose better than
// classes do: a class also holds what was made from the same inputs, and it is not split when
// values come back.

#pragma once

#include <cstdint>
#include <unordered_set>

#include "runtime/csrc/graph/executor.h"
#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/policy/evicted_classes.h"
#include "runtime/csrc/policy/lineages.h"
#include "runtime/csrc/policy/megengine_sets.h"
#include "runtime/csrc/policy/regions.h"
#include "runtime/csrc/policy/score.h"

namespace dtr {

class Neighbourhood {
 public:
  Neighbourhood(NeighbourhoodKind kind, ScoreColumns& columns)
      : kind_(kind), columns_(columns), classes_(columns), lineages_(columns) {
    lineages_.count(kind == NeighbourhoodKind::kLineage ? Lineages::kNear : Lineages::kAll);
  }

  // Each takes a value that shares no one's bytes. After a run of an operator, refresh() follows
  // the last added() or returned().
  void added(Value& value) {  // With content.
    if (by_regions()) regions_.returned(value);
  }
  void expected(Value& value) {  // New, and its operator has yet to run for the first time.
    if (by_classes()) classes_.expected(value);
  }
  void lost(Value& value, Loss loss);  // It has just lost its content.
  void returned(Value& value);         // It is back.
  void refresh() { regions_.refresh(); }
  void cut(Value& value);  // Its recipe is about to be forgotten, or it is itself.

  // While the next use of each value is known, that of what was made from it is in the value's need
  // (engine/needs.cpp): then a neighbourhood is what the value rests on.
  void foretold(bool is);

  // Two values that have been before became neighbours.
  void linked(Value& one, Value& other);

  void discard(Value& value);  // It goes, and so does all that knows it.

  Nanos cost(std::size_t row);  // Of the neighbourhood of a row's value.
  void fill();                  // The column of these costs, for all rows that may go.

  // Null where it has none.
  EvictedClasses* evicted_classes() { return by_classes() ? &classes_ : nullptr; }

  std::int64_t classes() const { return classes_.count() + sets_.count(); }
  std::int64_t accesses() const {
    return classes_.accesses() + lineages_.accesses() + regions_.accesses() + sets_.accesses();
  }
  void check(Value& value);
  void check_classes(const std::unordered_set<Value*>& values) const;  // `values`: all there are.

 private:
  bool by_regions() const { return kind_ == NeighbourhoodKind::kFull; }
  bool by_lineages() const {
    return kind_ == NeighbourhoodKind::kAncestors || kind_ == NeighbourhoodKind::kLineage;
  }
  bool by_classes() const { return kind_ == NeighbourhoodKind::kEvictedClass; }
  void leave_class(Value& value);

  const NeighbourhoodKind kind_;
  bool foretold_ = false;
  ScoreColumns& columns_;
  EvictedClasses classes_;
  Lineages lineages_;
  Regions regions_;
  MegEngineSets sets_;
};

}  // namespace dtr
