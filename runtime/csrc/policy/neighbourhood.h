// Computes the cost of a value's evicted neighbourhood: the missing values that would be recomputed
// along with it (paper, section 4.1). The engine reports each loss of content here: an eviction, a
// drop by the program, an in-place write, a buffer that a recomputation overwrites.
//
// The kinds, from cheap to exact, are: none; the paper's relaxation by a union-find
// (evicted_classes.h); the value's missing ancestors, as in MSPS (lineages.h); the exact
// neighbourhood e* (regions.h). MegEngine's (megengine_sets.h) is only for comparison. In all
// kinds, a view counts as the storage whose bytes it shares.
//
// A scope's default, kLineage, sums the nearest missing ancestors. It chooses better victims than
// evicted classes, which also hold values made from the same inputs, and are not split when values
// come back.

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

  // Pass no views to these functions. After an operator's last added() or returned(), call
  // refresh().
  void added(Value& value) {  // A new value with content.
    if (by_regions()) regions_.returned(value);
  }
  void expected(Value& value) {  // A new value whose operator has not run yet.
    if (by_classes()) classes_.expected(value);
  }
  void lost(Value& value, Loss loss);
  void returned(Value& value);
  void refresh() { regions_.refresh(); }
  void cut(Value& value);  // The value, or its recipe, is about to be removed.

  // Sets whether a tape predicts uses. If so, a value's neighbourhood leaves out values made from
  // it, because the value's need takes account of these (engine/needs.h).
  void foretold(bool is);

  void linked(Value& one, Value& other);  // From now on, `one` is made from `other`.

  void discard(Value& value);  // Removes all data about a value.

  Nanos cost(std::size_t row);  // The cost of a row's neighbourhood.
  void fill();                  // Sets the column `neighbourhood` of all evictable rows.

  EvictedClasses* evicted_classes() { return by_classes() ? &classes_ : nullptr; }

  std::int64_t classes() const { return classes_.count() + sets_.count(); }
  std::int64_t accesses() const {
    return classes_.accesses() + lineages_.accesses() + regions_.accesses() + sets_.accesses();
  }
  void check(Value& value);
  void check_classes(const std::unordered_set<Value*>& values) const;  // `values`: all values.

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
