// Tells what an operator costs on the host: the time that it usually takes.
//
// The time of a single run varies, as with interrupts, a cold cache, or memory that the system
// clears first. If we took such times as costs, no two steps would evict the same tensors, and a
// simulation would not match the program. But the same operator on the same shapes costs the same.
// So its cost is the least time in the first three steps in which it ran, or in its first thousand
// runs if these end earlier. After that the cost never changes, so equal steps evict the same
// tensors. Each call takes a hash of the shapes, and a look-up in a table.

#pragma once

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace dtr {

class UsualTimes {
 public:
  using Key = std::uint64_t;  // A hash of an operator and its arguments' shapes.
  static constexpr int kSteps = 3;
  static constexpr int kRuns = 1000;
  static constexpr std::size_t kMost = 1 << 16;  // At so many keys, all are erased.

  // Notes that a run took `ticks` in the program's step `step`, and returns the usual time.
  std::int64_t of(Key key, std::int64_t ticks, std::int64_t step) {
    if (known_.size() >= kMost && known_.find(key) == known_.end()) known_.clear();
    const auto [at, is_new] = known_.emplace(key, Known{.least = ticks, .step = step});
    Known& known = at->second;
    if (is_new || known.runs == kRuns) return known.least;
    if (known.step != step) {
      if (known.steps == kSteps) return known.least;
      known.step = step;
      ++known.steps;
    }
    ++known.runs;
    known.least = std::min(known.least, ticks);
    return known.least;
  }

 private:
  struct Known {
    std::int64_t least;
    std::int64_t step;
    int steps = 1, runs = 1;
  };
  ska::flat_hash_map<Key, Known> known_;
};

}  // namespace dtr
