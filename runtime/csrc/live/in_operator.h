// What this thread is doing: torch calls back into us from inside operators, and what a call means
// depends on it.

#pragma once

#include <cstdint>
#include <utility>

namespace dtr {

// This thread runs an operator: pointers that torch hands out now go to a kernel, not to the
// program.
class InOperator {
 public:
  explicit InOperator(bool by_handler = false) : before_(state.handled) {
    if (state.depth++ == 0) state.refused = state.at_least = 0;
    state.handled |= by_handler;
  }
  ~InOperator() {
    --state.depth;
    state.handled = before_;
  }
  InOperator(const InOperator&) = delete;

  struct State {
    int depth = 0;
    // Python code runs whose operators torch hides from us: what they read is not locked.
    bool handled = false;
    bool replaying = false;         // The operator is a recomputation, and not the program's doing.
    bool first_run = false;         // The operator never ran before, and does more than later.
    bool making_room = false;       // What is evicted goes for want of memory.
    std::int64_t search_ticks = 0;  // Spent looking for memory, not computing.
    // The largest request in vain since this operator began, and a budget that would have served
    // all of them; 0 where none would.
    std::int64_t refused = 0, at_least = 0;
  };
  static thread_local State state;

 private:
  bool before_;
};

class InReplay {
 public:
  InReplay() { InOperator::state.replaying = true; }
  ~InReplay() { InOperator::state.replaying = false; }
  InReplay(const InReplay&) = delete;
};

class MakingRoom {
 public:
  MakingRoom() : before_(std::exchange(InOperator::state.making_room, true)) {}
  ~MakingRoom() { InOperator::state.making_room = before_; }
  MakingRoom(const MakingRoom&) = delete;

 private:
  bool before_;
};

}  // namespace dtr
