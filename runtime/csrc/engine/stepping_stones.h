// Keeps stepping stones: small dropped values, from which larger ones are cheap to recompute.
//
// A dropped value is freed at once (paper, appendix C.5), so values made from it are expensive to
// recompute. For example, a layer of DenseNet makes 64 KiB of new channels by two convolutions,
// concatenates them to 960 KiB, and drops them. Recomputing the 960 KiB then costs the
// convolutions. With Heuristic::stepping_stones the channels stay as a candidate, a stone, while
// the program holds a value made from them that is much larger and much cheaper for each byte.
//
// No stone is kept before the first eviction: a program that has room needs none. A stone is needed
// again when its larger value is, which the tape predicts (needs.h). It is evicted by its score
// like other candidates, and then is no stone any more; swap does not take stones. It is freed when
// the program drops or overwrites the larger value, when that becomes a constant, and when room is
// needed where nothing may be evicted. Cost: a look at the readers of a dropped value; while there
// are stones, also at the inputs of values that are dropped or needed at another time. Source: our
// own, from what DTR recomputes in DenseNet.

#pragma once

#include <cstdint>

#include "runtime/csrc/graph/graph.h"

namespace dtr {

class SteppingStones {
 public:
  explicit SteppingStones(bool on) : on_(on) {}

  bool any() const { return count_ > 0; }
  std::int64_t count() const { return count_; }
  // Whether a resident value that the program has dropped leads to a larger one.
  static bool leads_on(const Value& value);
  bool lay(Value& value);  // Makes it a stone if it leads on, else returns false.
  void lift(Value& value);
  void check(const Value& value) const;  // Throws std::logic_error if inconsistent.

 private:
  const bool on_;
  std::int64_t count_ = 0;
};

}  // namespace dtr
