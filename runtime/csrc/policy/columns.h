// What scores are made of, as a structure of arrays: one row for each candidate, the same columns
// for the engine, its tests, and the kernels on a device (kernels/).
//
// The rows of an engine are kept as values come and go: a score then reads nothing but the columns
// it needs, one after the other, eight rows at once. A row costs a move of its last row when it
// goes. Rows are dense, in an order that only sampling looks at; all columns lie in one piece of
// memory, each aligned, and with room for a multiple of 16 rows, which is what kernels want. Where
// there is a device, that memory is page-locked, and a kernel reads it as it lies
// (device_scorer.h).

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "dtr_alloc/csrc/units.h"
#include "runtime/csrc/graph/graph.h"

namespace dtr {

struct EvictedClass;

// The evicted classes next to a row's value, where they are known and no more than two
// (evicted_classes.h).
struct NearClasses {
  EvictedClass *first = nullptr, *second = nullptr;
  bool known = false;
};

struct ColumnsView {
  std::size_t count;
  const Bytes *size, *free_left, *free_right;  // The free bytes directly beside the block.
  const Nanos *last_access, *cost, *neighbourhood;
  const std::int32_t* recomputes;
  const std::uint8_t* evictable;  // 1, or 0 while it is locked.
  const std::uint64_t* order;     // When it last became evictable: the later, the greater.
};

// Whether a value has a row, and no lock keeps it where it is.
inline bool evictable(const Value& value) { return value.candidate != kNowhere && !value.locks; }

// Gives memory for rows, zeroed.
using RowMemory = std::function<std::shared_ptr<std::byte[]>(std::size_t bytes)>;

class ScoreColumns {
 public:
  void lie_in(RowMemory memory);  // From now on; there is no row yet.

  std::size_t count() const { return values_.size(); }
  std::size_t evictable() const { return evictable_count_; }
  Bytes bytes() const { return bytes_; }  // Of all rows, locked or not.
  Value* value(std::size_t row) const { return values_[row]; }
  ColumnsView view() const {
    return {.count = count(),
            .size = size_,
            .free_left = free_left_,
            .free_right = free_right_,
            .last_access = last_access_,
            .cost = cost_,
            .neighbourhood = neighbourhood_,
            .recomputes = recomputes_,
            .evictable = evictable_,
            .order = order_};
  }

  void add(Value& value, std::uint64_t order);  // It has no row; it has its content and a recipe.
  void remove(Value& value);
  void clear();

  // Each is for a value that has a row.
  void permit(const Value& value, std::uint64_t order);  // Its last lock is gone.
  void forbid(const Value& value);                       // It has its first lock.
  void stamp(const Value& value, std::uint64_t order);
  void copy_times(const Value& value);  // Its cost and last access, which may change.

  NearClasses& near(std::size_t row) { return near_[row]; }
  void set_neighbourhood(std::size_t row, Nanos cost) { neighbourhood_[row] = cost; }
  void set_free(std::size_t row, std::pair<Bytes, Bytes> bytes) {
    free_left_[row] = bytes.first;
    free_right_[row] = bytes.second;
  }
  void clear_free();  // Of all rows.
  void set_free_left(std::size_t row, Bytes bytes) { free_left_[row] = bytes; }
  void set_free_right(std::size_t row, Bytes bytes) { free_right_[row] = bytes; }

  void check() const;  // Each row against its value. Throws std::logic_error with a sentence.

 private:
  void grow();

  std::vector<Value*> values_;
  std::vector<NearClasses> near_;
  std::size_t capacity_ = 0, evictable_count_ = 0;
  Bytes bytes_ = 0;
  RowMemory get_memory_;
  std::shared_ptr<std::byte[]> memory_;
  Bytes *size_ = nullptr, *free_left_ = nullptr, *free_right_ = nullptr;
  Nanos *last_access_ = nullptr, *cost_ = nullptr, *neighbourhood_ = nullptr;
  std::uint64_t* order_ = nullptr;
  std::int32_t* recomputes_ = nullptr;
  std::uint8_t* evictable_ = nullptr;
};

}  // namespace dtr
