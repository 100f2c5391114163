// Histories: the recipes behind a value, and when they are not worth keeping (outweighed());
// what rests on a constant, and when that becomes constant instead of it (shed, settle.h).
//
// A value that the program carries from step to step would drag all its history along, and a small
// result could hold on to the batch that it was computed from.

#pragma once

#include <cstdint>
#include <vector>

#include "runtime/csrc/graph/executor.h"
#include "runtime/csrc/graph/graph.h"

namespace dtr {

class Histories {
 public:
  explicit Histories(const Executor& executor) : executor_(executor) {}

  // Whether a value's history is not worth keeping: the recipes of what the program has let go
  // since, and what only these read. A value that the program carries from step to step would drag
  // all its history along. But recipes are kept for what they can bring back. So a history is too
  // much where it takes as much memory as the value, or kLongest operators to run again. A value is
  // asked as it is read, when the program has let go of what it was made from. Costs some
  // nanoseconds: by Value::history most need no look.
  static constexpr int kShortest = 16, kLongest = 256;
  bool outweighed(Value& value, int shortest = kShortest) {
    return value.history.recipes >= shortest && !value.constant() && weighs_too_much(value);
  }
  // Of what is behind a value, the constants that only recipes hold.
  std::vector<Value*> kept_behind(const Value& value);

  // What the program holds of values that rest on `constant`: their bytes, `enough` or all, and
  // whether these are resident and no operator is at work on them.
  struct Resting {
    Bytes bytes = 0;
    bool idle = true;
  };
  enum class Busy { kCounts, kStops };  // Whether the sum goes on behind what is not idle.
  Resting resting_on(const Value& constant, Bytes enough, Busy busy = Busy::kCounts) const;
  std::vector<Value*> held_on(const Value& constant) const;
  // Whether recomputing `value` or something behind it may read a constant that is absent. Also
  // where that is too far to see.
  bool rests_on_absent(const Value& value);

 private:
  struct Weight {
    int recipes = 1;  // To run again, its own included.
    int behind = 0;   // The estimate of what the program still holds there.
    Bytes kept = 0;   // Constants that only recipes hold.
    // Its own recipe aside. Each takes some 1,024 bytes, with what it made.
    Bytes bytes() const { return (recipes - 1) * kRecord + kept; }
  };
  static constexpr Bytes kRecord = 1024;
  template <class Visit>
  Weight walk(const Value& value, Bytes enough, const Visit& visit);
  bool weighs_too_much(Value& value);

  const Executor& executor_;
  std::uint64_t walk_ = 0;  // Marks of walks; counts down, a neighbourhood's count up.
};

}  // namespace dtr
