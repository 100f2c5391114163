// Chooses the values to evict; all ways of choosing are here.
//
//   all      The row of least score. Exact, and n scores a choice.
//   sample   The least of about sqrt(n) rows, where looking at all would take too long (paper,
//            appendix E.2).
//   random   Any row, for comparison (paper, appendix C.1).
//   waiting  The least row locked only by recomputations not yet begun: a last resort.
//   window   A run of neighbours in memory whose eviction leaves one hole (window.h).
//
// `choose` follows Heuristic::selection. Eviction calls the last two itself. Scores are computed
// from columns (columns.h). The selector first updates columns that depend on other values: the
// cost of the evicted neighbourhood and the free bytes beside a block.
//
// A new way of choosing needs a name in Selection (score.h), a method here, a case in `choose`, the
// name in heuristic.py, and a paragraph in docs/scoring.md.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/csrc/graph/executor.h"
#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/device_scorer.h"
#include "runtime/csrc/policy/neighbourhood.h"
#include "runtime/csrc/policy/scorer.h"
#include "runtime/csrc/policy/window.h"

namespace dtr {

class Selector {
 public:
  Selector(const Heuristic& heuristic, ScoreColumns& columns, Neighbourhood& neighbourhood,
           const Executor& executor)
      : heuristic_(heuristic),
        columns_(columns),
        neighbourhood_(neighbourhood),
        executor_(executor),
        scorer_(heuristic) {}

  // Lets a device score candidates, with columns in memory that it reads. Call it before any value.
  void score_on(std::unique_ptr<DeviceScorer> device);
  const DeviceScorer* device() const { return device_.get(); }  // Null if none scores.

  // By the heuristic's selection; null if nothing may be evicted. `clock` is the columns' clock,
  // `computed` all operators' time so far.
  Value* choose(Nanos clock, Nanos computed);
  Value* choose_waiting(Nanos clock);
  Window cheapest_window(const Pool& pool, Bytes bytes, Nanos clock) {
    return dtr::cheapest_window({pool, columns_, neighbourhood_, heuristic_, clock}, bytes);
  }

  std::int64_t evaluations() const { return evaluations_; }  // Scores computed.

 private:
  std::size_t draw(std::size_t rows);
  Value* choose_among_all(Nanos clock);
  Value* choose_from_sample(Nanos clock);
  Value* choose_at_random();
  bool all_are_affordable(Nanos computed) const;
  void consider(Least& least, const ColumnsView& columns, std::size_t row, Nanos clock);
  bool sees_right(const Value& value) const;
  void look_beside(std::size_t row);
  void look_beside_all();

  const Heuristic heuristic_;
  ScoreColumns& columns_;
  Neighbourhood& neighbourhood_;
  const Executor& executor_;
  Scorer scorer_;
  std::unique_ptr<DeviceScorer> device_;
  std::vector<Pool::Beside> holes_;
  std::int64_t evaluations_ = 0;
  std::uint64_t random_ = 0x9e3779b97f4a7c15 ^ heuristic_.seed;
};

}  // namespace dtr
