// Stepping stones: what the program drops, and what makes something larger cheap to bring back.
//
// What the program drops goes at once (paper, appendix C.5), and whatever was made from it is dear
// from then on. For example, a layer of DenseNet makes 64 KiB of new channels by two convolutions,
// concatenates them to 960 KiB, and drops them. To evict the 960 KiB then costs the convolutions
// too. With Heuristic::stepping_stones the channels stay as a candidate, a stone, while the program
// holds what was made from them, if that is much larger and much cheaper for each byte.
//
// Nothing stays before the first eviction: a program that has room needs no stones. A stone is
// needed when what it stays for is, which the tape foretells (needs.h). It goes when the program
// drops or overwrites that, or that becomes a constant; where nothing may be evicted; and as any
// candidate when it has the least score. Once lost it is a stone no more, and no swap takes it.
// Cost: a look at the readers of what is dropped; and while there is a stone, at the inputs of what
// the program lets go or will need at another time. Source: our own, found by what DTR recomputes
// in DenseNet.

#pragma once

#include <cstdint>

#include "runtime/csrc/graph/graph.h"

namespace dtr {

class SteppingStones {
 public:
  explicit SteppingStones(bool on) : on_(on) {}

  bool any() const { return count_ > 0; }
  std::int64_t count() const { return count_; }
  // Of a resident value that the program has dropped: whether it leads to something larger.
  static bool leads_on(const Value& value);
  bool lay(Value& value);  // Whether it is one now.
  void lift(Value& value);
  void check(const Value& value) const;  // Throws std::logic_error with a sentence.

 private:
  const bool on_;
  std::int64_t count_ = 0;
};

}  // namespace dtr
