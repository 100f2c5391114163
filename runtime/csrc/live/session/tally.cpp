#include "runtime/csrc/live/session/tally.h"

#include "runtime/csrc/live/machine/ticks.h"

namespace dtr {

std::int64_t Tally::usual_ticks(Bytes bytes) const {
  if (touched_bytes == 0) return to_ticks(estimate(bytes));
  return static_cast<std::int64_t>(static_cast<double>(kernel_ticks) * bytes / touched_bytes);
}

}  // namespace dtr
