// Chooses values to evict, in one of these ways. (orphans.h and clear_pages.h choose others.)
//
//   single   The row of least score among all n rows: exact, but n scores are computed.
//   sample   The row of least score among about sqrt(n) random rows, if to score all would take
//            too long (paper, appendix E.2).
//   random   Any row, for comparison (paper, appendix C.1).
//   waiting  Last resort: the least score among values locked only by operators that wait.
//   window   Values side by side in memory whose eviction leaves one hole (window.h).
//
// choose() takes one of the first three ways, by Heuristic::selection; class Eviction calls the
// last two. Before scores are computed, the selector updates the columns (columns.h) that depend on
// other values: the cost of the evicted neighbourhood and the free bytes beside a block.
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

  // Lets a device score candidates, and read the columns. Call it before any value exists.
  void score_on(std::unique_ptr<DeviceScorer> device);
  const DeviceScorer* device() const { return device_.get(); }  // Null if no device scores.

  // Returns a victim, or null if nothing can be evicted. `clock`: the time now, on the clock of the
  // column last_access (columns.h). `computed`: the time that operators have taken so far.
  Value* choose(Nanos clock, Nanos computed);
  Value* choose_waiting(Nanos clock);
  Window cheapest_window(const Pool& pool, Bytes bytes, Nanos clock) {
    return dtr::cheapest_window({pool, columns_, neighbourhood_, heuristic_, clock}, bytes);
  }

  std::int64_t evaluations() const { return evaluations_; }

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
