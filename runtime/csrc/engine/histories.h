// Finds histories, the recipes behind a value, that are not worth keeping (outweighed()), and
// values that rest on a constant, that is, were computed from it (for shed in settle.h).
//
// Otherwise a value that the program carries from step to step would keep its whole history, and a
// small result could keep the batch that it was computed from.

#pragma once

#include <cstdint>
#include <vector>

#include "runtime/csrc/graph/executor.h"
#include "runtime/csrc/graph/graph.h"

namespace dtr {

class Histories {
 public:
  explicit Histories(const Executor& executor) : executor_(executor) {}

  // Whether a value's history is not worth keeping: the recipes of values that the program has
  // dropped since, and constants that only these recipes read. Recipes are kept because they allow
  // eviction. So a history is too much if it takes as much memory as the value, or kLongest
  // operators to run again. Checked when the value is read, since by then the program has dropped
  // what the value was made from. Costs some nanoseconds: Value::history saves most walks.
  static constexpr int kShortest = 16, kLongest = 256;
  bool outweighed(Value& value, int shortest = kShortest) {
    return value.history.recipes >= shortest && !value.constant() && weighs_too_much(value);
  }
  // The constants behind a value that only recipes hold.
  std::vector<Value*> kept_behind(const Value& value);

  // The program's values that rest on `constant`: their bytes, counted up to `enough`, and whether
  // all of them are resident and unlocked.
  struct Resting {
    Bytes bytes = 0;
    bool idle = true;
  };
  enum class Busy { kCounts, kStops };  // Whether the walk goes on after a value that is not idle.
  Resting resting_on(const Value& constant, Bytes enough, Busy busy = Busy::kCounts) const;
  std::vector<Value*> held_on(const Value& constant) const;
  // Whether recomputing `value` or a value behind it may read an absent constant (Value::absent).
  // Also true if there are too many recipes to check.
  bool rests_on_absent(const Value& value);

 private:
  struct Weight {
    int recipes = 1;  // Operators to run again, with its own.
    int behind = 0;   // The longest (estimated) history of a held input.
    Bytes kept = 0;   // Bytes of constants that only recipes hold.
    // Without the value's own recipe. Each takes about 1,024 bytes, with its outputs' records.
    Bytes bytes() const { return (recipes - 1) * kRecord + kept; }
  };
  static constexpr Bytes kRecord = 1024;
  template <class Visit>
  Weight walk(const Value& value, Bytes enough, const Visit& visit);
  bool weighs_too_much(Value& value);

  const Executor& executor_;
  std::uint64_t walk_ = 0;  // The last walk's. Counts down; Neighbourhood's marks count up.
};

}  // namespace dtr
