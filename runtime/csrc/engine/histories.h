// Finds histories that are not worth keeping: outweighed(). A value's history is the recipes that
// recompute it and its inputs. Also finds values that rest on (are computed from) a constant.
//
// If all were kept, a value carried from step to step would keep the recipes of all steps, and a
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

  // Whether a value's history is not worth keeping: it has the recipes of inputs that the program
  // has dropped, and constants that only these read. Recipes only serve eviction, so a history is
  // too much if it takes as much memory as the value, or has kLongest operators. We check when the
  // value is read: by then the program has dropped the inputs. Costs some nanoseconds: the estimate
  // in Value::history saves most walks.
  static constexpr int kShortest = 16, kLongest = 256;
  bool outweighed(Value& value, int shortest = kShortest) {
    return value.history.recipes >= shortest && !value.constant() && weighs_too_much(value);
  }
  // The constants in a value's history that only recipes hold.
  std::vector<Value*> kept_behind(const Value& value);

  // The program's values that rest on `constant`: their bytes, counted up to `enough`, and whether
  // all of them are resident and unlocked.
  struct Resting {
    Bytes bytes = 0;
    bool idle = true;
  };
  enum class Busy { kCounts, kStops };  // Whether the walk counts a busy value or stops at it.
  Resting resting_on(const Value& constant, Bytes enough, Busy busy = Busy::kCounts) const;
  std::vector<Value*> held_on(const Value& constant) const;
  // Whether recomputing `value`, or a value that its recomputation needs, reads a constant whose
  // content is not in memory (Value::absent). True if there are too many recipes to check.
  bool rests_on_absent(const Value& value);

 private:
  struct Weight {
    int recipes = 1;  // Operators to run again, with the value's own.
    int behind = 0;   // The longest (estimated) history of an input that the program holds.
    Bytes kept = 0;   // Bytes of constants that only recipes hold.
    // All recipes but the value's own, each 1,024 bytes or so with its outputs, and `kept`.
    Bytes bytes() const { return (recipes - 1) * kRecord + kept; }
  };
  static constexpr Bytes kRecord = 1024;
  template <class Visit>
  Weight walk(const Value& value, Bytes enough, const Visit& visit);
  bool weighs_too_much(Value& value);

  const Executor& executor_;
  std::uint64_t walk_ = 0;  // The last walk's mark. Counts down; Neighbourhood counts up.
};

}  // namespace dtr
