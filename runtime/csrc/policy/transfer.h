// What it takes to bring a value out of memory and back, where there is somewhere to go. It is
// reckoned as if the program waited for each transfer.

#pragma once

#include "runtime/csrc/graph/graph.h"

namespace dtr {

struct Transfer {
  double nanoseconds_per_byte = 0;  // Both ways together.
  Nanos latency = 0ns;
  Bytes smallest = 1;  // A smaller value stays.

  // Outputs that are evicted together are recomputed together.
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
