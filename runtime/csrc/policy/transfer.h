// Computes how long the program waits to move a value to the swap and back.

#pragma once

#include "runtime/csrc/graph/graph.h"

namespace dtr {

struct Transfer {
  double nanoseconds_per_byte = 0;  // Both ways together.
  Nanos latency = 0ns;
  Bytes smallest = 1;  // A smaller value is not moved.

  // Returns whether a value can be moved. Outputs that are always evicted together cannot: one run
  // of their operator recomputes them all.
  bool takes(const Value& value) const {
    return value.size >= smallest && !(value.producer && value.producer->together);
  }
  Nanos one_way(Bytes bytes) const { return cost(bytes) / 2; }
  Nanos cost(Bytes bytes) const {
    return latency +
           Nanos{static_cast<std::int64_t>(nanoseconds_per_byte * static_cast<double>(bytes))};
  }
};

}  // namespace dtr
