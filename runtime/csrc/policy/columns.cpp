#include "runtime/csrc/policy/columns.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "runtime/csrc/graph/graph.h"

namespace dtr {

void ScoreColumns::lie_in(RowMemory memory) {
  if (count() > 0) throw std::logic_error("engine: rows lie somewhere already");
  capacity_ = 0;
  get_memory_ = std::move(memory);
}

void ScoreColumns::add(Value& value, std::uint64_t order) {
  if (count() == capacity_) grow();
  std::size_t row = count();
  value.candidate = static_cast<std::int32_t>(row);
  values_.push_back(&value);
  near_.emplace_back();
  size_[row] = value.size;
  bytes_ += value.size;
  free_left_[row] = free_right_[row] = 0;
  last_access_[row] = value.last_access;
  cost_[row] = value.cost;
  neighbourhood_[row] = 0;
  order_[row] = order;
  recomputes_[row] = value.recomputes;
  evictable_[row] = value.locks == 0;
  evictable_count_ += evictable_[row];
}

void ScoreColumns::remove(Value& value) {
  std::size_t row = value.candidate, last = count() - 1;
  evictable_count_ -= evictable_[row];
  bytes_ -= size_[row];
  values_[row] = values_[last];
  values_[row]->candidate = static_cast<std::int32_t>(row);
  near_[row] = near_[last];
  size_[row] = size_[last];
  free_left_[row] = free_left_[last];
  free_right_[row] = free_right_[last];
  last_access_[row] = last_access_[last];
  cost_[row] = cost_[last];
  neighbourhood_[row] = neighbourhood_[last];
  order_[row] = order_[last];
  recomputes_[row] = recomputes_[last];
  evictable_[row] = evictable_[last];
  evictable_[last] = 0;
  values_.pop_back();
  near_.pop_back();
  value.candidate = kNowhere;
}

void ScoreColumns::clear() {
  values_.clear();
  near_.clear();
  std::fill_n(evictable_, capacity_, 0);
  evictable_count_ = 0;
  bytes_ = 0;
}

void ScoreColumns::permit(const Value& value, std::uint64_t order) {
  evictable_count_ += !evictable_[value.candidate];
  evictable_[value.candidate] = 1;
  order_[value.candidate] = order;
}

void ScoreColumns::forbid(const Value& value) {
  evictable_count_ -= evictable_[value.candidate];
  evictable_[value.candidate] = 0;
}

void ScoreColumns::stamp(const Value& value, std::uint64_t order) {
  order_[value.candidate] = order;
}

void ScoreColumns::copy_times(const Value& value) {
  cost_[value.candidate] = value.cost;
  last_access_[value.candidate] = value.last_access;
}

void ScoreColumns::clear_free() {
  std::fill_n(free_left_, count(), 0);
  std::fill_n(free_right_, count(), 0);
}

// Doubles. The widest columns come first, so that each begins at a multiple of 64 bytes.
void ScoreColumns::grow() {
  std::size_t capacity = std::max<std::size_t>(1024, 2 * capacity_);
  constexpr std::size_t kRow = 7 * 8 + 4 + 1, kLine = 64;
  std::size_t bytes = capacity * kRow + kLine;
  std::shared_ptr<std::byte[]> memory =
      get_memory_ ? get_memory_(bytes) : std::make_shared<std::byte[]>(bytes);
  std::byte* next = memory.get();
  next += (kLine - reinterpret_cast<std::uintptr_t>(next) % kLine) % kLine;
  const auto move = [&]<typename T>(T*& column) {
    T* moved = reinterpret_cast<T*>(next);
    std::copy_n(column, count(), moved);
    column = moved;
    next += capacity * sizeof(T);
  };
  move(size_), move(free_left_), move(free_right_);
  move(last_access_), move(cost_), move(neighbourhood_), move(order_);
  move(recomputes_), move(evictable_);
  memory_ = std::move(memory);
  capacity_ = capacity;
}

void ScoreColumns::check() const {
  const auto insist = [](bool truth, const char* sentence) {
    if (!truth) throw std::logic_error(std::string("engine: ") + sentence);
  };
  std::size_t evictable = 0;
  for (std::size_t row = 0; row < count(); ++row) {
    const Value& value = *values_[row];
    insist(value.candidate == static_cast<std::int32_t>(row), "a candidate knows its row");
    insist(size_[row] == value.size && cost_[row] == value.cost,
           "a row has its value's size, cost");
    insist(last_access_[row] == value.last_access, "a row has its value's last access");
    insist(recomputes_[row] == value.recomputes, "a row has its value's recomputes");
    insist(evictable_[row] == (value.locks == 0), "exactly the unlocked rows are evictable");
    evictable += evictable_[row];
  }
  insist(evictable == evictable_count_, "the evictable rows are counted");
  for (std::size_t row = count(); row < capacity_; ++row) {
    insist(evictable_[row] == 0, "what is beyond the last row is not evictable");
  }
}

}  // namespace dtr
