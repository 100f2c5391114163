#include "runtime/csrc/policy/scorer.h"

#include <algorithm>
#include <cstring>
#include <utility>

// A returned vector would depend on the processor; all functions here are inlined, so none is.
#pragma GCC diagnostic ignored "-Wpsabi"
#include "runtime/csrc/policy/vector_power.h"

namespace dtr {
namespace {

constexpr double kNear = 1e-12;  // Far above the error of a score in floating point.
constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr std::size_t kPenalties = 64;  // Few values are recomputed more often.

using Flags = std::uint8_t __attribute__((vector_size(kLanes)));

template <typename Vector, typename T>
[[gnu::always_inline]] inline void load(Vector& vector, const T* from) {
  static_assert(sizeof(Vector) == kLanes * sizeof(T));
  std::memcpy(&vector, from, sizeof(Vector));
}

// The terms of a score: with exponents of 1 only, or any (`general`).
struct Shape {
  bool cost, size, staleness, general;
};

// Scores of `count` rows, a multiple of kLanes, from `row` on; returns the least.
template <bool kCost, bool kSize, bool kStaleness, bool kGeneral>
[[gnu::always_inline]] inline double score_rows(const ColumnsView& columns, std::size_t row,
                                                std::size_t count, const Heuristic& h, Nanos clock,
                                                const double* penalties, double* scores) {
  const Reals one = Reals{} + 1.0, nothing = Reals{} + std::numeric_limits<double>::quiet_NaN();
  const Reals infinite = Reals{} + kInfinite;
  Reals lowest = infinite;
  for (std::size_t end = row + count; row < end; row += kLanes) {
    Wholes a, b;
    Reals numerator = one, bytes = one, staleness = one;
    if constexpr (kCost) {
      load(a, columns.cost + row);
      load(b, columns.neighbourhood + row);
      numerator = __builtin_convertvector(a + b + h.epsilon.count(), Reals);
    }
    if constexpr (kGeneral) {
      numerator = raise(numerator, h.cost_exp);
      Reals penalty = one;
      for (std::size_t lane = 0; h.recompute_penalty != 1 && lane < kLanes; ++lane) {
        std::int32_t times = columns.recomputes[row + lane];
        penalty[lane] = times < static_cast<std::int32_t>(kPenalties)
                            ? penalties[times]
                            : std::pow(h.recompute_penalty, static_cast<double>(times));
      }
      numerator *= penalty;
    }
    if constexpr (kSize) {
      load(a, columns.size + row);
      bytes = __builtin_convertvector(a, Reals);
      if constexpr (kGeneral) {
        load(a, columns.free_left + row);
        load(b, columns.free_right + row);
        bytes += h.fragmentation * __builtin_convertvector(a + b, Reals);
        bytes = raise(bytes, h.size_exp);
      }
    }
    if constexpr (kStaleness) {
      load(a, columns.last_access + row);
      staleness = __builtin_convertvector(clock.count() - a + h.epsilon.count(), Reals);
      if constexpr (kGeneral) staleness = raise(staleness, h.staleness_exp);
    }
    Reals denominator = bytes * staleness;
    Reals score = numerator / denominator;
    score = denominator > 0 ? score : infinite;
    score = score == score ? score : infinite;
    Flags flags;
    load(flags, columns.evictable + row);
    Wholes evictable = __builtin_convertvector(flags, Wholes);
    score = evictable != 0 ? score : nothing;
    std::memcpy(scores + row, &score, sizeof(score));
    lowest = score < lowest ? score : lowest;
  }
  double least = lowest[0];
  for (std::size_t lane = 1; lane < kLanes; ++lane) least = std::min(least, lowest[lane]);
  return least;
}

struct Tile {
  const ColumnsView& columns;
  std::size_t row, count;
  const Heuristic& heuristic;
  Nanos clock;
  Shape shape;
  const double* penalties;
  double* scores;
};

// A function with all shapes, for each processor below.
[[gnu::always_inline]] inline double score_any(const Tile& tile) {
  const auto with = [&]<bool... kTerms>() __attribute__((always_inline)) {
    return score_rows<kTerms...>(tile.columns, tile.row, tile.count, tile.heuristic, tile.clock,
                                 tile.penalties, tile.scores);
  };
  Shape shape = tile.shape;
  if (shape.general) return with.template operator()<true, true, true, true>();
  switch (4 * shape.cost + 2 * shape.size + shape.staleness) {
    case 0:
      return with.template operator()<false, false, false, false>();
    case 1:
      return with.template operator()<false, false, true, false>();
    case 2:
      return with.template operator()<false, true, false, false>();
    case 3:
      return with.template operator()<false, true, true, false>();
    case 4:
      return with.template operator()<true, false, false, false>();
    case 5:
      return with.template operator()<true, false, true, false>();
    case 6:
      return with.template operator()<true, true, false, false>();
    default:
      return with.template operator()<true, true, true, false>();
  }
}

double score_tile_anywhere(const Tile& tile) { return score_any(tile); }

#ifdef __x86_64__
__attribute__((target("avx512f,avx512dq,avx512vl"))) double score_tile_avx512(const Tile& tile) {
  return score_any(tile);
}
__attribute__((target("avx2"))) double score_tile_avx2(const Tile& tile) { return score_any(tile); }
#endif

auto score_tile_here() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return score_tile_avx512;
  }
  if (__builtin_cpu_supports("avx2")) return score_tile_avx2;
#endif
  return score_tile_anywhere;
}

const auto score_tile = score_tile_here();

Shape shape_of(const Heuristic& h) {
  return {.cost = h.cost_exp != 0,
          .size = h.size_exp != 0,
          .staleness = h.staleness_exp != 0,
          .general = !plain(h)};
}

// Whether the vectors' powers are accurate enough to choose by.
bool has_vectors(const Heuristic& h) {
  bool accurate = true;
  for_each_number(h, [&](ParameterRole role, double value) {
    if (role == ParameterRole::kExponent) accurate = accurate && value <= kGreatestExponent;
  });
  return accurate;
}

double least_of(const double* scores, std::size_t count) {
  double least = kInfinite;
  for (std::size_t i = 0; i < count; ++i) least = std::min(least, scores[i]);  // NaN: never less.
  return least;
}

// Whether all inputs of an integral score are equal.
bool alike(const Heuristic& h, const Terms& a, const Terms& b) {
  return (h.cost_exp == 0 || a.cost == b.cost) && (h.size_exp == 0 || a.size == b.size) &&
         (h.staleness_exp == 0 || a.staleness == b.staleness);
}

}  // namespace

// The score of `terms`, as exact as a comparison with score_ needs.
inline double Least::comparable_score(const Terms& terms) {
  const double score = dtr::score(heuristic_, terms);
  const bool comparable = integral_ && row_ != kNoRow;
  if (comparable && alike(heuristic_, terms, terms_)) return score_;
  if (comparable && std::abs(score - score_) <= kNear * std::abs(score_)) {
    if (!exact_) score_ = exact_score(heuristic_, terms_);
    exact_ = true;
    return exact_score(heuristic_, terms);
  }
  if (score < score_) exact_ = false;
  return score;
}

void Least::consider(std::int64_t row, std::uint64_t order, const Terms& terms) {
  const double score = comparable_score(terms);
  if (score > score_ || (score == score_ && row_ != kNoRow && order < order_)) return;
  row_ = row;
  order_ = order;
  score_ = score;
  terms_ = terms;
}

Scorer::Scorer(const Heuristic& heuristic)
    : heuristic_(heuristic),
      integral_(heuristic.epsilon == 0ns && plain(heuristic)),
      vectors_(has_vectors(heuristic)) {
  for (std::size_t times = 0; times < kPenalties; ++times) {
    penalties_.push_back(std::pow(heuristic.recompute_penalty, static_cast<double>(times)));
  }
}

Terms Scorer::terms(const ColumnsView& columns, std::size_t row, Nanos clock) const {
  return {.cost = Nanos{columns.cost[row] + columns.neighbourhood[row]},
          .size = columns.size[row],
          .staleness = clock - Nanos{columns.last_access[row]},
          .recomputes = columns.recomputes[row],
          .free_neighbours = columns.free_left[row] + columns.free_right[row]};
}

// Scores of a tile's rows; returns the least.
double Scorer::score_tile_of(const ColumnsView& columns, std::size_t begin, Nanos clock,
                             double* scores) {
  std::size_t end = std::min(begin + kScoreTile, columns.count), row = begin;
  double lowest = kInfinite;
  if (vectors_) {
    row = begin + (end - begin) / kLanes * kLanes;
    lowest = score_tile({columns, begin, row - begin, heuristic_, clock, shape_of(heuristic_),
                         penalties_.data(), scores});
  }
  for (; row < end; ++row) {
    scores[row] = columns.evictable[row] ? dtr::score(heuristic_, terms(columns, row, clock))
                                         : std::numeric_limits<double>::quiet_NaN();
    lowest = std::min(lowest, scores[row]);  // A NaN is never less.
  }
  return lowest;
}

void Scorer::score(const ColumnsView& columns, Nanos clock, double* scores) {
  lowest_.clear();
  for (std::size_t begin = 0; begin < columns.count; begin += kScoreTile) {
    lowest_.push_back(score_tile_of(columns, begin, clock, scores));
  }
}

Scorer::Choice Scorer::choose(const ColumnsView& columns, Nanos clock) {
  if (scores_.size() < columns.count) scores_.resize(2 * columns.count);
  score(columns, clock, scores_.data());
  return choose_scored(columns, clock);
}

// Given scores may be off by kNear, and so may the least of them: rows that might be least lie
// within four times that. If given scores must be wrong, or all rows count, the host scores all.
Scorer::Choice Scorer::choose_near(const ColumnsView& columns, Nanos clock,
                                   const double* least_of_tiles) {
  const std::size_t tiles = (columns.count + kScoreTile - 1) / kScoreTile;
  const double given = least_of(least_of_tiles, tiles);
  if (!(given > 0)) return choose(columns, clock);
  if (scores_.size() < columns.count) scores_.resize(2 * columns.count);
  lowest_.assign(tiles, kInfinite);
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    if (least_of_tiles[tile] > given + 4 * kNear * given) continue;
    lowest_[tile] = score_tile_of(columns, tile * kScoreTile, clock, scores_.data());
  }
  const double lowest = least_of(lowest_.data(), tiles);
  if (!(lowest > 0) || (lowest == kInfinite && given < kInfinite)) return choose(columns, clock);
  return choose_scored(columns, clock);
}

Scorer::Choice Scorer::choose_scored(const ColumnsView& columns, Nanos clock) {
  const double lowest = least_of(lowest_.data(), lowest_.size());
  if (lowest <= 0) return choose_not_positive(columns, clock);
  Least least = this->least();
  double near = lowest + 2 * kNear * lowest;
  for (std::size_t tile = 0; tile < lowest_.size(); ++tile) {
    if (lowest_[tile] > near) continue;
    std::size_t end = std::min((tile + 1) * kScoreTile, columns.count);
    for (std::size_t row = tile * kScoreTile; row < end; ++row) {
      if (scores_[row] > near || scores_[row] != scores_[row]) continue;
      least.consider(static_cast<std::int64_t>(row), columns.order[row],
                     terms(columns, row, clock));
    }
  }
  return {.row = least.row(), .evaluations = 0};
}

Scorer::Choice Scorer::choose_not_positive(const ColumnsView& columns, Nanos clock) const {
  std::vector<std::pair<std::uint64_t, std::size_t>> free;
  std::int64_t evaluations = 0;
  for (std::size_t row = 0; row < columns.count; ++row) {
    evaluations += columns.evictable[row];
    if (scores_[row] <= 0) free.emplace_back(columns.order[row], row);
  }
  std::sort(free.begin(), free.end());
  Least least = this->least();
  for (auto& [order, row] : free) {
    ++evaluations;
    least.consider(static_cast<std::int64_t>(row), order, terms(columns, row, clock));
    if (scores_[row] == 0) break;
  }
  return {.row = least.row(), .evaluations = evaluations};
}

}  // namespace dtr
