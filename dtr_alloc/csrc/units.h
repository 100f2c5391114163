// Units of all figures: bytes, and nanoseconds.
//
// A time is a type of its own, so that no size and no bare number becomes one by mistake: it must be
// said, as in Nanos{bytes} where a logical clock counts bytes. That keeps the two apart. Sizes stay
// plain numbers, since all over the pool they are offsets and indices too.

#pragma once

#include <chrono>
#include <cstdint>

namespace dtr {

using namespace std::chrono_literals;

using Bytes = std::int64_t;
using Nanos = std::chrono::nanoseconds;

}  // namespace dtr
