#include "runtime/csrc/policy/selector.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "runtime/csrc/graph/owner.h"

namespace dtr {

void Selector::score_on(std::unique_ptr<DeviceScorer> device) {
  device_ = std::move(device);
  columns_.lie_in([this](std::size_t bytes) { return device_->memory(bytes); });
}

Value* Selector::choose(Nanos clock, Nanos computed) {
  if (heuristic_.selection == Selection::kRandom) {
    if (Value* value = choose_at_random()) return value;
  }
  if (heuristic_.selection == Selection::kSample && !all_are_affordable(computed)) {
    if (Value* value = choose_from_sample(clock)) return value;
  }
  return choose_among_all(clock);
}

Value* Selector::choose_among_all(Nanos clock) {
  neighbourhood_.fill();
  if (heuristic_.fragmentation != 0) look_beside_all();
  const ColumnsView columns = columns_.view();
  std::optional<Scorer::Choice> by_device;
  if (device_) by_device = device_->choose(scorer_, columns, clock);
  const Scorer::Choice choice = by_device ? *by_device : scorer_.choose(columns, clock);
  evaluations_ += static_cast<std::int64_t>(columns_.evictable()) + choice.evaluations;
  return choice.row == kNoRow ? nullptr : columns_.value(choice.row);
}

// The sampling rule. A choice among all rows is the best choice, and with little memory one choice
// in thirty can decide whether a program recomputes for ever. It costs n scores. So we look at all
// rows while scoring has taken less than a fiftieth of the operators' time. Eviction must stay
// cheap if operators are short and candidates are thousands: beyond that share, a choice looks at
// sqrt(n) rows.
bool Selector::all_are_affordable(Nanos computed) const {
  constexpr Nanos kScore = 6ns;
  constexpr int kShare = 50;
  constexpr std::size_t kFew = 32;
  const auto n = static_cast<std::int64_t>(columns_.count());
  return columns_.count() <= kFew || (evaluations_ + n) * kScore <= computed / kShare;
}

inline void Selector::consider(Least& least, const ColumnsView& columns, std::size_t row,
                               Nanos clock) {
  columns_.set_neighbourhood(row, neighbourhood_.cost(row));
  if (heuristic_.fragmentation != 0) look_beside(row);
  ++evaluations_;
  least.consider(static_cast<std::int64_t>(row), columns.order[row],
                 scorer_.terms(columns, row, clock));
}

// Draws at least kSampleAtLeast rows. Tensors below a hundredth of the mean size are skipped.
Value* Selector::choose_from_sample(Nanos clock) {
  constexpr std::size_t kSampleAtLeast = 32;
  const ColumnsView columns = columns_.view();
  const std::size_t n = columns.count;
  const Bytes small = columns_.bytes() / static_cast<Bytes>(n) / 100;
  const auto draws = std::max(kSampleAtLeast, static_cast<std::size_t>(std::sqrt(n)));
  Least least = scorer_.least();
  for (std::size_t i = 0; i < draws; ++i) {
    const std::size_t row = draw(n);
    if (columns.size[row] >= small && columns.evictable[row]) consider(least, columns, row, clock);
  }
  return least.row() == kNoRow ? nullptr : columns_.value(least.row());
}

// Few rows are locked, so 2 n draws nearly always find one that is not.
Value* Selector::choose_at_random() {
  const ColumnsView columns = columns_.view();
  for (std::size_t i = 0; i < 2 * columns.count; ++i) {
    if (const std::size_t row = draw(columns.count); columns.evictable[row]) {
      return columns_.value(row);
    }
  }
  return nullptr;
}

Value* Selector::choose_waiting(Nanos clock) {
  const ColumnsView columns = columns_.view();
  Least least = scorer_.least();
  for (std::size_t row = 0; row < columns.count; ++row) {
    const Value& value = *columns_.value(row);
    if (value.locks > 0 && value.locks == value.waiting) consider(least, columns, row, clock);
  }
  return least.row() == kNoRow ? nullptr : columns_.value(least.row());
}

std::size_t Selector::draw(std::size_t rows) {
  random_ = random_ * 6364136223846793005 + 1442695040888963407;  // Knuth's MMIX generator.
  return (random_ >> 32) * rows >> 32;
}

// MegEngine looks for the right hole where a value's bytes end. Blocks end at a granule, so it sees
// a right hole only beside values whose size is a whole number of granules.
bool Selector::sees_right(const Value& value) const {
  return heuristic_.neighbourhood != NeighbourhoodKind::kMegEngine ||
         value.size == round_to_granule(value.size);
}

void Selector::look_beside(std::size_t row) {
  const Value& value = *columns_.value(row);
  const auto [left, right] = executor_.free_neighbours(value);
  columns_.set_free(row, {left, sees_right(value) ? right : 0});
}

// Most values have no hole beside them, so the walk is over the holes.
void Selector::look_beside_all() {
  const Pool* pool = executor_.pool_of_values();
  if (!pool) return;
  pool->list_holes(holes_);
  columns_.clear_free();
  const auto is_candidate = [](const Value* value) {
    return value && value->candidate != kNowhere;
  };
  for (const Pool::Beside& hole : holes_) {
    const Value* left = as_value(hole.left);
    const Value* right = as_value(hole.right);
    if (is_candidate(left) && sees_right(*left)) {
      columns_.set_free_right(left->candidate, hole.free);
    }
    if (is_candidate(right)) columns_.set_free_left(right->candidate, hole.free);
  }
}

}  // namespace dtr
