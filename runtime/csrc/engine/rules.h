// Limits and rules that the live runtime, its traces and the simulation share, each with its
// reason.

#pragma once

#include "dtr_alloc/pool/csrc/units.h"
#include "runtime/csrc/graph/graph.h"

namespace dtr {

// Smaller results are constants at birth: a record costs as much memory as they do.
constexpr Bytes kSmallestValue = 512;

// Integers and booleans too, up to this size: composite kernels read such arguments (lengths, split
// points) without asking the dispatcher.
constexpr Bytes kSmallestIndexValue = Bytes{64} << 10;

// A constant this small, such as the number in `x + 1`, is copied into the recipe: kept as a
// storage it would cost a block of the pool and three records.
constexpr Bytes kLargestInline = 16;

// An operator that writes a constant is recorded only where the constant is this small: its recipe
// must read a copy of what was there.
constexpr Bytes kLargestCopy = Bytes{64} << 10;

// Smaller ones are not worth a transfer.
constexpr Bytes kSmallestMoved = Bytes{16} << 10;

// A buffer that is written in place more often than this becomes a constant: each recipe of the
// chain would hold on to what it reads.
constexpr int kLongestWriteChain = 16;

// Whether a result may be a value of its own; `index`: of integers or booleans.
constexpr bool large_enough(Bytes bytes, bool index = false) {
  return bytes >= (index ? kSmallestIndexValue : kSmallestValue);
}
constexpr bool kept_in_recipe(Bytes bytes) { return bytes <= kLargestInline; }
constexpr bool copied_before_a_write(Bytes bytes) { return bytes <= kLargestCopy; }

// Whether a replay that writes `value`, which it reads at so many places, takes its memory for the
// result: where nothing else wants the content.
inline bool takes_buffer(const Value& value, std::int32_t places) {
  return !value.constant() && !value.movable() && !value.home && value.locks == places;
}

}  // namespace dtr
