#include "runtime/csrc/policy/columns.h"

#include <algorithm>

#include "dtr_alloc/pool/csrc/insist.h"

namespace dtr {

void ScoreColumns::lie_in(RowMemory memory) {
  insist(count() == 0, "engine: rows lie somewhere already");
  capacity_ = 0;
  get_memory_ = std::move(memory);
}

void ScoreColumns::add(Value& value, std::uint64_t order) {
  if (count() == capacity_) grow();  // From here on nothing fails.
  std::size_t row = count();
  value.candidate = static_cast<std::int32_t>(row);
  values_.push_back(&value);
  near_.emplace_back();
  lineages_.push_back(kNotWalked);
#define DTR_FILL(type, name, initial) at_.name[row] = initial;
  DTR_SCORE_COLUMNS(DTR_FILL)
#undef DTR_FILL
  bytes_ += value.size;
  evictable_count_ += at_.evictable[row];
}

void ScoreColumns::remove(Value& value) {
  std::size_t row = value.candidate, last = count() - 1;
  evictable_count_ -= at_.evictable[row];
  bytes_ -= at_.size[row];
  values_[row] = values_[last];
  values_[row]->candidate = static_cast<std::int32_t>(row);
  near_[row] = near_[last];
  lineages_[row] = lineages_[last];
  for_each_column(at_, [&](auto* column) { column[row] = column[last]; });
  at_.evictable[last] = 0;
  values_.pop_back();
  near_.pop_back();
  lineages_.pop_back();
  value.candidate = kNowhere;
}

void ScoreColumns::permit(const Value& value, std::uint64_t order) {
  evictable_count_ += !at_.evictable[value.candidate];
  at_.evictable[value.candidate] = 1;
  at_.order[value.candidate] = order;
}

void ScoreColumns::forbid(const Value& value) {
  evictable_count_ -= at_.evictable[value.candidate];
  at_.evictable[value.candidate] = 0;
}

void ScoreColumns::stamp(const Value& value, std::uint64_t order) {
  at_.order[value.candidate] = order;
}

void ScoreColumns::copy_times(const Value& value) {
  at_.cost[value.candidate] = cost_of(value);
  at_.last_access[value.candidate] = value.last_access.count();
}

void ScoreColumns::clear_free() {
  std::fill_n(at_.free_left, count(), 0);
  std::fill_n(at_.free_right, count(), 0);
}

// Doubles the room for rows.
void ScoreColumns::grow() {
  std::size_t capacity = std::max<std::size_t>(1024, 2 * capacity_);
  values_.reserve(capacity);
  near_.reserve(capacity);
  lineages_.reserve(capacity);
  constexpr std::size_t kLine = 64;
  std::size_t bytes = capacity * kRowBytes + kLine;
  std::shared_ptr<std::byte[]> memory =
      get_memory_ ? get_memory_(bytes) : std::make_shared<std::byte[]>(bytes);
  std::byte* next = memory.get();
  next += (kLine - reinterpret_cast<std::uintptr_t>(next) % kLine) % kLine;
  for_each_column(at_, [&]<typename T>(T*& column) {
    T* moved = reinterpret_cast<T*>(next);
    std::copy_n(column, count(), moved);
    column = moved;
    next += capacity * sizeof(T);
  });
  memory_ = std::move(memory);
  capacity_ = capacity;
}

void ScoreColumns::check() const {
  std::size_t evictable = 0;
  for (std::size_t row = 0; row < count(); ++row) {
    const Value& value = *values_[row];
    insist(value.candidate == static_cast<std::int32_t>(row), "engine: a candidate knows its row");
    insist(at_.size[row] == value.size && at_.cost[row] == cost_of(value),
           "engine: a row has its value's size, cost");
    insist(at_.recomputes[row] == value.recomputes, "engine: a row has its value's recomputes");
    insist(at_.evictable[row] == (value.locks == 0),
           "engine: exactly the unlocked rows are evictable");
    evictable += at_.evictable[row];
  }
  insist(evictable == evictable_count_, "engine: the evictable rows are counted");
  for (std::size_t row = count(); row < capacity_; ++row) {
    insist(at_.evictable[row] == 0, "engine: what is beyond the last row is not evictable");
  }
}

}  // namespace dtr
