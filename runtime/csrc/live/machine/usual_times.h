// What an operator costs on the host: the time that it usually takes.
//
// A single time is of the operator and of the machine's moment: an interrupt, a cold cache, memory
// that the kernel clears first. By such times no two steps are alike: a policy evicts other tensors
// each time, and none of what a simulation found holds. But the same operator on the same shapes
// costs the same. So the least of its times counts, of the first three steps in which it ran, or of
// a thousand runs where there are no steps. Then it stays, and steps that do the same evict the
// same. Costs a key of the shapes, and a probe of a table.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace dtr {

class UsualTimes {
 public:
  using Key = std::uint64_t;  // Of an operator and the shapes it sees.
  static constexpr int kSteps = 3;
  static constexpr int kRuns = 1000;
  static constexpr std::size_t kMost = 1 << 16;  // Operators and shapes. Then all is forgotten.

  // Where it took `ticks` this time, in a step of this number.
  std::int64_t of(Key key, std::int64_t ticks, std::int64_t step) {
    if (known_.size() >= kMost && !known_.contains(key)) known_.clear();
    const auto [at, is_new] = known_.try_emplace(key, Known{.least = ticks, .step = step});
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
  std::unordered_map<Key, Known> known_;
};

}  // namespace dtr
