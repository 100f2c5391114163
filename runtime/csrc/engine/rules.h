// Lists limits and rules that the live runtime, its traces and the simulation share, each with its
// reason.

#pragma once

#include "dtr_alloc/pool/csrc/units.h"
#include "runtime/csrc/graph/graph.h"

namespace dtr {

// A result smaller than this is a constant (never evicted): its record would take as much memory.
constexpr Bytes kSmallestValue = 512;

// A result of an operator with so many tensor arguments or more is a constant if it is smaller than
// the records of all these, as a `stack` of small tensors is.
constexpr std::size_t kManyArguments = 16;

// A random result on the host smaller than this is a constant, too: its recipe would keep the
// generator's state, which takes 2.5 KiB.
constexpr Bytes kSmallestRandom = Bytes{4} << 10;

// Integer or boolean results smaller than this are constants, too: composite kernels read such
// tensors (lengths, split points) past the dispatcher, so we could not bring back an evicted one.
constexpr Bytes kSmallestIndexValue = Bytes{64} << 10;

// A constant of at most this size, such as the number in `x + 1`, is copied into the recipe. To
// keep it in a storage would cost a block of the pool and three records.
constexpr Bytes kLargestInline = 16;

// An operator that writes in place to a constant larger than this is not recorded, since its recipe
// would need a copy of the constant's old content.
constexpr Bytes kLargestCopy = Bytes{64} << 10;

// Values smaller than this are not worth a transfer to the swap.
constexpr Bytes kSmallestMoved = Bytes{16} << 10;

// A storage that is written in place more often than this becomes a constant. Otherwise it would
// keep a recipe for each write, and all that these recipes read.
constexpr int kLongestWriteChain = 16;

// Returns whether a result is worth evicting. `index`: the result holds integers or booleans.
constexpr bool large_enough(Bytes bytes, bool index = false) {
  return bytes >= (index ? kSmallestIndexValue : kSmallestValue);
}
constexpr bool outweighs_records(Bytes result, std::size_t arguments) {
  return arguments < kManyArguments || result >= static_cast<Bytes>(arguments) * kSmallestValue;
}
constexpr bool kept_in_recipe(Bytes bytes) { return bytes <= kLargestInline; }
constexpr bool copied_before_a_write(Bytes bytes) { return bytes <= kLargestCopy; }

// Returns whether a replay that writes `value` in place may do so without a copy, because nothing
// else needs the content. `places`: how many of the replay's arguments are `value`; each locks it.
inline bool takes_buffer(const Value& value, std::int32_t places) {
  return !value.constant() && !value.movable() && !value.home && value.locks == places;
}

}  // namespace dtr
