// Keeps stepping stones: small dropped values, from which larger ones are cheap to recompute.
//
// A dropped value is freed at once (paper, appendix C.5), so values made from it are expensive to
// recompute. For example, a layer of DenseNet makes 64 KiB by two convolutions, concatenates them
// with others to 960 KiB, and drops the 64 KiB. Recomputing the 960 KiB then takes the
// convolutions, too. With Heuristic::stepping_stones the 64 KiB stay evictable in memory, as a
// stone, while the program holds a much larger value, made from them, that is much cheaper a byte.
//
// Before the first eviction no stones are kept, because there is room. A stone is needed when its
// larger value is, which the tape predicts (needs.h). A stone is evicted by its score like other
// candidates, but never moved to the swap. It is freed when the program drops or overwrites the
// larger value, when the larger value becomes a constant, and when room is needed while nothing may
// be evicted. Cost: for a dropped value, a look at values made from it; while there are stones,
// also at inputs of values that are dropped or whose need changes. Source: our own, from what DTR
// recomputes in DenseNet.

#pragma once

#include <cstdint>

#include "runtime/csrc/graph/graph.h"

namespace dtr {

class SteppingStones {
 public:
  explicit SteppingStones(bool on) : on_(on) {}

  bool any() const { return count_ > 0; }
  std::int64_t count() const { return count_; }
  // Whether the program holds a much larger value that `value` makes cheap to recompute.
  static bool leads_on(const Value& value);
  bool lay(Value& value);  // Makes it a stone if leads_on(), else returns false.
  void lift(Value& value);
  void check(const Value& value) const;  // Throws std::logic_error if inconsistent.

 private:
  const bool on_;
  std::int64_t count_ = 0;
};

}  // namespace dtr
