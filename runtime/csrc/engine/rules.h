// Lists limits and rules that the live runtime, its traces and the simulation share, each with its
// reason.

#pragma once

#include "dtr_alloc/pool/csrc/units.h"
#include "runtime/csrc/graph/graph.h"

namespace dtr {

// A smaller result is a constant from the start: its record would take as much memory.
constexpr Bytes kSmallestValue = 512;

// Smaller results of integers and booleans are constants, too: composite kernels read such
// arguments (lengths, split points) without the dispatcher.
constexpr Bytes kSmallestIndexValue = Bytes{64} << 10;

// A constant this small, such as the number in `x + 1`, is copied into the recipe. A storage of its
// own would cost a block of the pool and three records.
constexpr Bytes kLargestInline = 16;

// An operator that writes a larger constant is not recorded: its recipe would need a copy of the
// old content.
constexpr Bytes kLargestCopy = Bytes{64} << 10;

// Smaller values are not worth a transfer to the swap.
constexpr Bytes kSmallestMoved = Bytes{16} << 10;

// A buffer that is written in place more often than this becomes a constant: otherwise each recipe
// of the chain would keep its inputs in memory.
constexpr int kLongestWriteChain = 16;

// Whether a result is large enough to be evicted; `index`: it holds integers or booleans.
constexpr bool large_enough(Bytes bytes, bool index = false) {
  return bytes >= (index ? kSmallestIndexValue : kSmallestValue);
}
constexpr bool kept_in_recipe(Bytes bytes) { return bytes <= kLargestInline; }
constexpr bool copied_before_a_write(Bytes bytes) { return bytes <= kLargestCopy; }

// Whether a replay that writes `value`, passed as `places` of its arguments, may put the result in
// the memory of `value`, because nothing else needs the content.
inline bool takes_buffer(const Value& value, std::int32_t places) {
  return !value.constant() && !value.movable() && !value.home && value.locks == places;
}

}  // namespace dtr
