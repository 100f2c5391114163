// Finds histories that are not worth keeping. A value's history is its recipe, the recipes of
// inputs that the program has dropped, the recipes of those inputs' dropped inputs, and so on. Also
// finds the values that rest on a constant: that were computed from it, even indirectly.
//
// If all histories were kept, a value that every step updates, such as a running mean, would keep
// the recipes of all steps, and a small result could keep the batch that it was computed from.

#pragma once

#include <cstdint>
#include <vector>

#include "runtime/csrc/graph/executor.h"
#include "runtime/csrc/graph/graph.h"

namespace dtr {

class Histories {
 public:
  explicit Histories(const Executor& executor) : executor_(executor) {}

  // Returns whether a value's history is not worth keeping. A history only serves to evict the
  // value. So it is not worth keeping if its recipes, and the constants that only these keep, take
  // as much memory as the value, or if it has kLongest recipes. Call it when the value is read: by
  // then the program has dropped most inputs. Takes some nanoseconds, since mostly the estimate in
  // Value::history decides, without a walk over recipes.
  static constexpr int kShortest = 16, kLongest = 256;
  bool outweighed(Value& value, int shortest = kShortest) {
    return value.history.recipes >= shortest && !value.constant() && weighs_too_much(value);
  }
  // Returns what only recipes keep in memory in a value's history: constants and movable values.
  std::vector<Value*> kept_behind(const Value& value);

  // What rests on `constant`: the bytes of the program's values that were computed from it (the
  // walk ends at `enough` bytes), and whether all of these values are resident and unlocked (idle).
  struct Resting {
    Bytes bytes = 0;
    bool idle = true;
  };
  enum class Busy { kCounts, kStops };  // kStops: the walk ends at a value that is not idle.
  Resting resting_on(const Value& constant, Bytes enough, Busy busy = Busy::kCounts) const;
  std::vector<Value*> held_on(const Value& constant) const;
  // Returns whether `value` was computed, even indirectly, from a constant whose content is not in
  // memory (Value::absent), so that a recomputation may fail. Also returns true for more than
  // kLongest recipes.
  bool rests_on_absent(const Value& value);

 private:
  struct Weight {
    int recipes = 1;  // Recipes in the history, the value's own included.
    int behind = 0;   // The longest (estimated) history of an input that the program holds.
    Bytes kept = 0;   // Bytes that only recipes keep in memory.
    // The history's memory: about 1,024 bytes for each recipe but the value's own, plus `kept`.
    Bytes bytes() const { return (recipes - 1) * kRecord + kept; }
  };
  static constexpr Bytes kRecord = 1024;
  template <class Visit>
  Weight walk(const Value& value, Bytes enough, const Visit& visit);
  bool weighs_too_much(Value& value);

  const Executor& executor_;
  std::uint64_t walk_ = 0;  // The last walk's mark. Counts down, away from Neighbourhood's marks.
};

}  // namespace dtr
