// Defines the units of all figures: bytes, and nanoseconds.
//
// Time has a type of its own, so that a size or a bare number does not become a time by mistake.
// Conversions are explicit: a logical clock, which counts bytes as time, writes Nanos{bytes}. Sizes
// stay plain numbers, since the pool also uses them as offsets and indices.

#pragma once

#include <chrono>
#include <cstdint>
#include <type_traits>

namespace dtr {

using namespace std::chrono_literals;

using Bytes = std::int64_t;
using Nanos = std::chrono::nanoseconds;

// Rounds up to a multiple of `unit`.
template <class Number>
constexpr Number round_up(Number number, std::type_identity_t<Number> unit) {
  return (number + unit - 1) / unit * unit;
}

}  // namespace dtr
