// Chooses the victim of least score; among equal scores, the value that became evictable last.
//
// The compiler's vectors score eight rows at once, in a version for AVX-512, AVX2 or other
// processors, chosen when the program starts. All versions round alike, so choices are the same
// everywhere. With exponents 0 and 1 they round as the scalar score (score.h). With other powers
// (vector_power.h) they differ by up to 1e-13, so the scalar score decides among rows that are this
// near.
//
// If terms are integers, near scores are compared as exact quotients, so that rounding decides
// nothing. The reference simulator scans from the value that became evictable first, and stops at a
// score of zero. We do the same if scores are zero or less (sums of evicted classes may drift below
// 0).

#pragma once

#include <vector>

#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/score.h"

namespace dtr {

constexpr std::int64_t kNoRow = -1;
constexpr std::size_t kScoreTile = 256;  // Rows that are scored together.

// The least of the rows considered so far.
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

  // Writes each row's score, powers to 1e-13, and NaN for rows that are not evictable.
  void score(const ColumnsView& columns, Nanos clock, double* scores);

  struct Choice {
    std::int64_t row;          // The row to evict, or kNoRow.
    std::int64_t evaluations;  // Scores computed beyond one for each evictable row.
  };
  Choice choose(const ColumnsView& columns, Nanos clock);

  // Makes the same choice, but scores only tiles near the lowest, given each tile's least score up
  // to rounding.
  Choice choose_near(const ColumnsView& columns, Nanos clock, const double* least_of_tiles);

 private:
  double score_tile_of(const ColumnsView& columns, std::size_t begin, Nanos clock, double* scores);
  Choice choose_scored(const ColumnsView& columns, Nanos clock);
  Choice choose_not_positive(const ColumnsView& columns, Nanos clock) const;

  Heuristic heuristic_;
  bool integral_, vectors_;
  std::vector<double> scores_;
  std::vector<double> lowest_;     // The least of each tile.
  std::vector<double> penalties_;  // recompute_penalty to the power of its index.
};

}  // namespace dtr
