// Tells whether this thread runs an operator, and of which kind. Torch calls us from inside
// operators, too, for example for memory, and such a call is handled differently.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace dtr {

// Counts bytes that an operator has allocated and not freed: its results so far, and temporaries.
// Follows at most sixteen live allocations; any more count as never freed.
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

// While an object of this class lives, its thread runs an operator. A pointer that torch gives out
// during that time goes to a kernel, not to the program.
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
    // In a Python mode or subclass, whose operators torch before 2.13 hides from us: evict nothing.
    bool handled = false;
    bool replaying = false;         // This thread recomputes or reloads a value.
    bool first_run = false;         // The first run of a library's operator or compiled graph.
    bool making_room = false;       // Evictions serve a request for memory, not a resize.
    bool indices_stay = false;      // Integer results stay: a composite kernel reads their memory.
    std::int64_t search_ticks = 0;  // Time that this thread has spent in search of memory.
    // The largest request refused since this operator began, and a budget that would have served
    // each refused one (0 if no budget would).
    std::int64_t refused = 0, at_least = 0;
    MadeSoFar made;
  };
  static constinit thread_local State state;

 private:
  bool before_;
};

// Sets a variable to `value`; the destructor restores the old value.
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
