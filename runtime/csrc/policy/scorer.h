// Chooses the victim of least score; among equal scores, the value that became evictable last.
//
// Code with the compiler's vector types scores eight rows at once. There is a version for AVX-512,
// one for AVX2 and one for other processors; which one runs is chosen when the program starts. All
// versions round alike, so choices are the same everywhere. If all exponents are 0 or 1, vectors
// give the same scores as score() (score.h). With other exponents (vector_power.h) they differ from
// it by up to 1e-13. So score() decides among rows of nearly equal scores.
//
// If the heuristic is plain() and epsilon is 0, as in the paper's simulator, nearly equal scores
// are compared as exact quotients, so that rounding never decides. The reference simulator looks at
// the value that became evictable first, then at the next, and stops at a score of 0. We do the
// same if the least score is 0 or less (sums of evicted classes may fall below 0).

#pragma once

#include <vector>

#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/score.h"

namespace dtr {

constexpr std::int64_t kNoRow = -1;
constexpr std::size_t kScoreTile = 256;  // Rows that are scored together.

// Remembers which row has the least score among the rows considered so far.
class Least {
 public:
  Least(const Heuristic& heuristic, bool exact) : heuristic_(heuristic), integral_(exact) {}

  void consider(std::int64_t row, std::uint64_t order, const Terms& terms);
  std::int64_t row() const { return row_; }

 private:
  double comparable_score(const Terms& terms);

  const Heuristic& heuristic_;
  const bool integral_;
  std::int64_t row_ = kNoRow;
  std::uint64_t order_ = 0;
  double score_ = std::numeric_limits<double>::infinity();
  Terms terms_{};
  bool exact_ = false;  // Whether `score_` is exact.
};

class Scorer {
 public:
  explicit Scorer(const Heuristic& heuristic);

  Terms terms(const ColumnsView& columns, std::size_t row, Nanos clock) const;
  Least least() const { return Least(heuristic_, integral_); }

  // Writes all rows' scores: with errors up to 1e-13 if powers are needed, NaN if not evictable.
  void score(const ColumnsView& columns, Nanos clock, double* scores);

  struct Choice {
    std::int64_t row;          // The row to evict, or kNoRow.
    std::int64_t evaluations;  // Scores computed beyond one for each evictable row.
  };
  Choice choose(const ColumnsView& columns, Nanos clock);

  // Makes the same choice as choose(), but scores only tiles whose least score, given in
  // `least_of_tiles` up to rounding, is near the lowest of all.
  Choice choose_near(const ColumnsView& columns, Nanos clock, const double* least_of_tiles);

 private:
  double score_tile_of(const ColumnsView& columns, std::size_t begin, Nanos clock, double* scores);
  Choice choose_scored(const ColumnsView& columns, Nanos clock);
  Choice choose_not_positive(const ColumnsView& columns, Nanos clock) const;

  Heuristic heuristic_;
  bool integral_, vectors_;
  std::vector<double> scores_;
  std::vector<double> lowest_;     // The least score of each tile.
  std::vector<double> penalties_;  // At i: recompute_penalty to the power of i.
};

}  // namespace dtr
