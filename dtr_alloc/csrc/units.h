// Units of all figures: bytes, and nanoseconds.

#pragma once

#include <cstdint>

namespace dtr {

using Bytes = std::int64_t;
using Nanos = std::int64_t;

}  // namespace dtr
