// Stores the inputs of scores in arrays (columns), with one row for each candidate for eviction.
// The engine, its tests and the kernel on a device (kernels/) use the same columns.
//
// The engine adds a row when a value becomes a candidate, and removes it when it no longer is one.
// The scorer reads only the columns that a heuristic needs, eight rows at once. When a row is
// removed, the last row moves to its place, so there are no gaps. Only sampling depends on the
// order of rows. All columns lie in one range of memory, each aligned, with room for a multiple of
// 16 rows, as kernels need. If there is a device, this memory is page-locked, and a kernel reads it
// in place (device_scorer.h).

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "dtr_alloc/pool/csrc/units.h"
#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/policy/transfer.h"

namespace dtr {

struct EvictedClass;

// Caches which evicted classes (sets of missing values, evicted_classes.h) contain neighbours of a
// row's value, if there are at most kMost. In an LSTM cell nearly all values have three or four.
struct Near {
  static constexpr std::size_t kMost = 4;
  std::array<EvictedClass*, kMost> classes;
  std::uint8_t count = 0;
  bool known = false;
};

constexpr Nanos kNotWalked{-1};  // Means that a lineage's cost is not cached.

// Lists each column: its type, its name, and its content in the row of a new `value`. The widest
// types come first, so that each column begins at a multiple of 64 bytes. The kernel's arguments
// (device_scorer.cpp) are these columns in this order, without `order`.
//
// last_access, cost and neighbourhood are integers of nanoseconds, for vectors, kernels and NumPy.
// While a tape predicts uses (tape.h), last_access is minus the time of the value's next need, and
// the clock for scores is minus the tape's clock. So the staleness (clock minus last_access) is the
// time until that need.
//
// free_left and free_right are the free bytes directly beside the block. evictable is 1, or 0 while
// a lock keeps the value. order is larger the later the value became evictable.
#define DTR_SCORE_COLUMNS(X)                              \
  X(Bytes, size, value.size)                              \
  X(Bytes, free_left, 0)                                  \
  X(Bytes, free_right, 0)                                 \
  X(std::int64_t, last_access, value.last_access.count()) \
  X(std::int64_t, cost, cost_of(value))                   \
  X(std::int64_t, neighbourhood, 0)                       \
  X(std::uint64_t, order, order)                          \
  X(std::int32_t, recomputes, value.recomputes)           \
  X(std::uint8_t, evictable, value.locks == 0)

struct ColumnPointers {
#define DTR_POINTER(type, name, initial) type* name = nullptr;
  DTR_SCORE_COLUMNS(DTR_POINTER)
#undef DTR_POINTER
};

struct ColumnsView {
  std::size_t count;
#define DTR_POINTER(type, name, initial) const type* name;
  DTR_SCORE_COLUMNS(DTR_POINTER)
#undef DTR_POINTER
};

inline ColumnsView view_of(const ColumnPointers& columns, std::size_t count) {
#define DTR_POINTER(type, name, initial) , columns.name
  return {count DTR_SCORE_COLUMNS(DTR_POINTER)};
#undef DTR_POINTER
}

template <typename Columns, typename Visit>
void for_each_column(Columns& columns, Visit&& visit) {
#define DTR_VISIT(type, name, initial) visit(columns.name);
  DTR_SCORE_COLUMNS(DTR_VISIT)
#undef DTR_VISIT
}

#define DTR_WIDTH(type, name, initial) sizeof(type),
constexpr std::size_t kColumnWidths[] = {DTR_SCORE_COLUMNS(DTR_WIDTH)};
#undef DTR_WIDTH
static_assert(std::is_sorted(std::rbegin(kColumnWidths), std::rend(kColumnWidths)));
constexpr std::size_t kRowBytes =
    std::accumulate(std::begin(kColumnWidths), std::end(kColumnWidths), std::size_t{0});

inline bool evictable(const Value& value) { return value.candidate != kNowhere && !value.locks; }

// Allocates zeroed memory for rows.
using RowMemory = std::function<std::shared_ptr<std::byte[]>(std::size_t bytes)>;

class ScoreColumns {
 public:
  void lie_in(RowMemory memory);  // Call it before the first row.
  // Limits the costs of values that the swap can take. If such a value costs at least as much to
  // recompute as to transfer, or was recomputed before, its cost and its neighbourhood's count
  // together at most as the transfer. Call it before the first row.
  void limit_costs(const Transfer& transfer) { transfer_ = transfer; }
  const std::optional<Transfer>& transfer() const { return transfer_; }

  std::size_t count() const { return values_.size(); }
  std::size_t evictable() const { return evictable_count_; }
  Bytes bytes() const { return bytes_; }  // The sum of the values in all rows, locked or not.
  Value* value(std::size_t row) const { return values_[row]; }
  ColumnsView view() const { return view_of(at_, count()); }

  void add(Value& value, std::uint64_t order);  // The value must have content and a recipe.
  void remove(Value& value);

  // The next four functions require that the value has a row.
  void permit(const Value& value, std::uint64_t order);  // Its last lock was released.
  void forbid(const Value& value);                       // Its first lock was taken.
  void stamp(const Value& value, std::uint64_t order);
  void copy_times(const Value& value);  // Updates the row's cost and last_access.
  void set_all_needs(Nanos need) { std::fill_n(at_.last_access, count(), -need.count()); }
  void set_need(std::size_t row, Nanos need) { at_.last_access[row] = -need.count(); }

  Near& near(std::size_t row) { return near_[row]; }
  Nanos& lineage(std::size_t row) { return lineages_[row]; }  // The lineage's cost (lineages.h).
  void forget_near(const Value& value) {
    if (value.candidate == kNowhere) return;
    near_[value.candidate] = {};
    lineages_[value.candidate] = kNotWalked;
  }
  void forget_all_near() {
    std::fill(near_.begin(), near_.end(), Near{});
    std::fill(lineages_.begin(), lineages_.end(), kNotWalked);
  }
  void set_neighbourhood(std::size_t row, Nanos cost) {
    const Nanos all{at_.cost[row] + cost.count()};
    at_.neighbourhood[row] = limited(*values_[row], all) - at_.cost[row];
  }
  void set_free(std::size_t row, std::pair<Bytes, Bytes> bytes) {
    at_.free_left[row] = bytes.first;
    at_.free_right[row] = bytes.second;
  }
  void clear_free();  // Sets free_left and free_right to 0 in all rows.
  void set_free_left(std::size_t row, Bytes bytes) { at_.free_left[row] = bytes; }
  void set_free_right(std::size_t row, Bytes bytes) { at_.free_right[row] = bytes; }

  // Throws std::logic_error if a row's size, cost, recomputes or evictable is not its value's.
  void check() const;
  Nanos last_access(std::size_t row) const { return Nanos{at_.last_access[row]}; }

 private:
  // Applies the rule of limit_costs(). A neighbourhood's high cost alone sets no limit: that cost
  // is an estimate, and recomputing the neighbourhood often serves many missing values.
  std::int64_t limited(const Value& value, Nanos cost) const {
    if (!transfer_ || !transfer_->takes(value)) return cost.count();
    const Nanos transfer = transfer_->cost(value.size);
    const bool dear = value.cost >= transfer || value.recomputes > 0;
    return (dear ? std::min(cost, transfer) : cost).count();
  }
  std::int64_t cost_of(const Value& value) const { return limited(value, value.cost); }
  void grow();

  std::vector<Value*> values_;
  std::vector<Near> near_;
  std::vector<Nanos> lineages_;
  std::size_t capacity_ = 0, evictable_count_ = 0;
  Bytes bytes_ = 0;
  std::optional<Transfer> transfer_;
  RowMemory get_memory_;
  std::shared_ptr<std::byte[]> memory_;
  ColumnPointers at_;
};

}  // namespace dtr
