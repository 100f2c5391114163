// Tells what this thread is doing: torch calls us from inside operators, too, and how we handle
// such a call depends on the operator.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace dtr {

// Counts what an operator has allocated and not freed: its results so far, and temporaries. Follows
// sixteen allocations at once, and counts any more as never freed.
class MadeSoFar {
 public:
  void start() { count_ = rest_ = 0; }
  void allocated(const void* data, std::int64_t bytes) {
    if (count_ == std::ssize(each_)) {
      rest_ += bytes;
    } else {
      each_[count_++] = {data, bytes};
    }
  }
  void freed(const void* data) {
    const auto end = each_.begin() + count_;
    const auto at =
        std::find_if(each_.begin(), end, [&](const auto& one) { return one.data == data; });
    if (at != end) *at = each_[--count_];
  }
  std::int64_t bytes() const {
    std::int64_t sum = rest_;
    for (std::int64_t i = 0; i < count_; ++i) sum += each_[i].bytes;
    return sum;
  }

 private:
  struct Allocation {
    const void* data;
    std::int64_t bytes;
  };
  std::array<Allocation, 16> each_ = {};
  std::int64_t count_ = 0, rest_ = 0;
};

// While an object of this class lives, its thread runs an operator: torch gives pointers to a
// kernel, not to the program.
class InOperator {
 public:
  explicit InOperator(bool by_handler = false) : before_(state.handled) {
    if (state.depth++ == 0) {
      state.refused = state.at_least = 0;
      state.made.start();
    }
    state.handled |= by_handler;
  }
  ~InOperator() {
    --state.depth;
    state.handled = before_;
  }
  InOperator(const InOperator&) = delete;

  struct State {
    int depth = 0;
    // Python code runs whose operators torch hides from us, so nothing may be evicted.
    bool handled = false;
    bool replaying = false;     // The operator is a recomputation, not the program's call.
    bool first_run = false;     // The operator runs for the first time, with extra work.
    bool making_room = false;   // Evictions now make room for a request.
    bool indices_stay = false;  // A composite kernel reads its integer results (composites.cpp).
    std::int64_t search_ticks = 0;  // Spent looking for memory, not computing.
    // Of requests refused since this operator began: the largest, and a budget that would have
    // served them all (0 if no budget would).
    std::int64_t refused = 0, at_least = 0;
    MadeSoFar made;
  };
  static constinit thread_local State state;

 private:
  bool before_;
};

// Sets a variable to another value for the lifetime of an object.
template <typename T>
class Meanwhile {
 public:
  Meanwhile(T& variable, T value) : variable_(variable), before_(std::exchange(variable, value)) {}
  ~Meanwhile() { variable_ = before_; }
  Meanwhile(const Meanwhile&) = delete;

 private:
  T& variable_;
  const T before_;
};

}  // namespace dtr
