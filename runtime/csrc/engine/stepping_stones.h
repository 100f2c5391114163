// Keeps stepping stones: small dropped values, from which larger ones are cheap to recompute.
//
// Usually a value is freed when the program drops it (paper, appendix C.5). To recompute a value
// made from it, we must then recompute it first. For example, a layer of DenseNet makes 64 KiB by
// two convolutions, concatenates them with others to 960 KiB, and drops the 64 KiB. To recompute
// the 960 KiB then takes the convolutions, too. With Heuristic::stepping_stones the 64 KiB stay in
// memory as a stone, which can be evicted, while the program holds a value made from them that is
// much larger and, per byte, much cheaper to recompute than the stone.
//
// Before the first eviction no dropped value is kept, because there is room. A stone's predicted
// next use is that of its larger value (needs.h). A stone is evicted by its score like other
// values, but never moved to the swap. It is freed when the program drops or overwrites the larger
// value, when the larger value becomes a constant, or when memory is needed and evictions are not
// allowed. Cost: when a value is dropped, a look at values made from it. While there are stones,
// also a look at the inputs of each value that is dropped or whose need changes. The idea is our
// own.

#pragma once

#include <cstdint>

#include "runtime/csrc/graph/graph.h"

namespace dtr {

class SteppingStones {
 public:
  explicit SteppingStones(bool on) : on_(on) {}

  bool any() const { return count_ > 0; }
  std::int64_t count() const { return count_; }
  // Returns whether the program holds a much larger value that `value` makes cheap to recompute.
  static bool leads_on(const Value& value);
  bool lay(Value& value);  // If leads_on(value), makes it a stone and returns true.
  void lift(Value& value);
  void check(const Value& value) const;  // Throws std::logic_error if inconsistent.

 private:
  const bool on_;
  std::int64_t count_ = 0;
};

}  // namespace dtr
