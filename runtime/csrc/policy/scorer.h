// The choice of a victim among many: the row of least score. Among equals, what became evictable
// last goes.
//
// Eight rows are scored at once by the compiler's vectors, in a version for each of AVX-512, AVX2
// and the rest, chosen when the program starts; all round alike, so choices are the same
// everywhere, and where exponents are 0 and 1 as the scalar score does. Powers (vector_power.h)
// don't, by 1e-13: the scalar score decides among rows that are as near as that.
//
// Where terms are integers, near scores are compared as exact quotients (score.h), so that the
// order of candidates is never that of rounding. The reference simulator scans from what became
// evictable first and stops at a score of zero; that decides between free values (zero), and those
// that the drift of evicted classes has put below nothing.

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
  bool exact_ = false;  // Whether `score_` is.
};

class Scorer {
 public:
  explicit Scorer(const Heuristic& heuristic);

  Terms terms(const ColumnsView& columns, std::size_t row, Nanos clock) const;
  Least least() const { return Least(heuristic_, integral_); }

  // Of every row, powers to 1e-13; not a number where it is not evictable.
  void score(const ColumnsView& columns, Nanos clock, double* scores);

  struct Choice {
    std::int64_t row;          // To evict first, or kNoRow.
    std::int64_t evaluations;  // Scores computed beyond one for each evictable row.
  };
  Choice choose(const ColumnsView& columns, Nanos clock);

  // The same choice, where somebody else has found the least score of each tile as nearly as
  // rounding lets him: only the tiles that are near the least of all are scored here.
  Choice choose_near(const ColumnsView& columns, Nanos clock, const double* least_of_tiles);

 private:
  double score_tile_of(const ColumnsView& columns, std::size_t begin, Nanos clock, double* scores);
  Choice choose_scored(const ColumnsView& columns, Nanos clock);
  Choice choose_not_positive(const ColumnsView& columns, Nanos clock) const;

  Heuristic heuristic_;
  bool integral_, vectors_;
  std::vector<double> scores_;
  std::vector<double> lowest_;     // Of each tile of rows.
  std::vector<double> penalties_;  // recompute_penalty to the power of its index.
};

}  // namespace dtr
