#include "runtime/csrc/scorer.h"

#include <algorithm>
#include <utility>

namespace dtr {
namespace {

constexpr double kNear = 1e-12;  // Far above the error of a score in floating point.

}  // namespace

void Least::consider(std::int64_t row, std::uint64_t order, const Terms& terms) {
  double score = dtr::score(heuristic_, terms);
  if (integral_ && row_ != kNoRow && std::abs(score - score_) <= kNear * std::abs(score_)) {
    score = exact_score(heuristic_, terms);
    if (!exact_) score_ = exact_score(heuristic_, terms_);
    exact_ = true;
  } else if (score < score_) {
    exact_ = false;
  }
  if (score > score_ || (score == score_ && row_ != kNoRow && order < order_)) return;
  row_ = row;
  order_ = order;
  score_ = score;
  terms_ = terms;
}

Terms Scorer::terms(const ColumnsView& columns, std::size_t row, Nanos clock) const {
  return {.cost = columns.cost[row] + columns.neighbourhood[row],
          .size = columns.size[row],
          .staleness = clock - columns.last_access[row],
          .recomputes = columns.recomputes[row],
          .free_neighbours = columns.free_left[row] + columns.free_right[row]};
}

void Scorer::score(const ColumnsView& columns, Nanos clock, double* scores) const {
  for (std::size_t row = 0; row < columns.count; ++row) {
    scores[row] = columns.evictable[row] ? dtr::score(heuristic_, terms(columns, row, clock))
                                         : std::numeric_limits<double>::quiet_NaN();
  }
}

std::int64_t Scorer::choose(const ColumnsView& columns, Nanos clock) {
  scores_.resize(columns.count);
  score(columns, clock, scores_.data());
  double lowest = std::numeric_limits<double>::infinity();
  for (double score : scores_) lowest = std::min(lowest, score);  // A NaN is never less.
  if (lowest <= 0) return choose_not_positive(columns, clock);
  Least least = this->least();
  double near = lowest + 2 * kNear * lowest;
  for (std::size_t row = 0; row < columns.count; ++row) {
    if (scores_[row] <= near) {
      least.consider(static_cast<std::int64_t>(row), columns.order[row],
                     terms(columns, row, clock));
    }
  }
  return least.row();
}

std::int64_t Scorer::choose_not_positive(const ColumnsView& columns, Nanos clock) const {
  std::vector<std::pair<std::uint64_t, std::size_t>> free;
  for (std::size_t row = 0; row < columns.count; ++row) {
    if (scores_[row] <= 0) free.emplace_back(columns.order[row], row);
  }
  std::sort(free.begin(), free.end());
  Least least = this->least();
  for (auto& [order, row] : free) {
    least.consider(static_cast<std::int64_t>(row), order, terms(columns, row, clock));
    if (scores_[row] == 0) break;
  }
  return least.row();
}

}  // namespace dtr
