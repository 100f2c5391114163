// Computes powers of eight numbers at once, with the compiler's vector types.
//
// The C library's pow() takes 15 ns a number, and compilers link no vector version by default. We
// compute base^exponent as 2^(exponent * log2(base)): the logarithm of the mantissa by the series
// of the inverse hyperbolic tangent, 2 to the power of the fraction by the exponential series. Both
// series end where terms fall below a double's last bit. For exponents up to kGreatestExponent and
// bases that are 64-bit integers, the relative error is at most 6e-14, small enough for scorer.h.
// The result is the same on every processor, since each step rounds alike.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace dtr {

constexpr std::size_t kLanes = 8;
using Reals = double __attribute__((vector_size(8 * kLanes)));
using Wholes = std::int64_t __attribute__((vector_size(8 * kLanes)));

constexpr double kGreatestExponent = 4;

namespace vector_power {

[[gnu::always_inline]] inline Wholes bits_of(const Reals& real) {
  Wholes bits;
  std::memcpy(&bits, &real, sizeof bits);
  return bits;
}

[[gnu::always_inline]] inline Reals real_of(const Wholes& bits) {
  Reals real;
  std::memcpy(&real, &bits, sizeof real);
  return real;
}

// Returns the logarithms; requires normal positive numbers.
[[gnu::always_inline]] inline Reals log2(const Reals& number) {
  constexpr std::int64_t kRootOfHalf = 0x3fe6a09e667f3bcd;  // The bits of the double sqrt(1/2).
  constexpr double kTwoByLog = 2.8853900817779268;          // 2 / ln(2)
  Wholes bits = bits_of(number);
  Wholes whole = (bits - kRootOfHalf) >> 52;
  Reals mantissa = real_of(bits - (whole << 52));  // From sqrt(1/2) to sqrt(2).
  Reals s = (mantissa - 1.0) / (mantissa + 1.0);   // Below 0.172.
  Reals square = s * s;
  Reals sum = Reals{} + 1.0 / 21;
#pragma GCC unroll 16
  for (int divisor = 19; divisor > 0; divisor -= 2) sum = sum * square + 1.0 / divisor;
  return __builtin_convertvector(whole, Reals) + kTwoByLog * s * sum;
}

// Returns the powers; requires that they are from 2^-1000 to 2^1000.
[[gnu::always_inline]] inline Reals exp2(const Reals& number) {
  // This is 1.5 * 2^52: adding it to a number rounds the number to an integer.
  constexpr double kRounds = 6755399441055744.0;
  constexpr double kLog = 0.69314718055994531;  // ln(2)
  Reals shifted = number + kRounds;
  Wholes whole = bits_of(shifted) << 52;               // The integer, moved to a double's exponent.
  Reals rest = (number - (shifted - kRounds)) * kLog;  // From -0.347 to 0.347.
  constexpr double kFactorials[] = {1,    1,     2,      6,       24,       120,       720,
                                    5040, 40320, 362880, 3628800, 39916800, 479001600, 6227020800};
  Reals sum = Reals{} + 1.0 / kFactorials[13];
#pragma GCC unroll 16
  for (int degree = 12; degree >= 0; --degree) sum = sum * rest + 1.0 / kFactorials[degree];
  return real_of(bits_of(sum) + whole);
}

}  // namespace vector_power

// Does what raise() in score.h does, for eight bases at once.
[[gnu::always_inline]] inline Reals raise(const Reals& base, double exponent) {
  if (exponent == 1) return base;
  const Reals nothing{};
  if (exponent == 0) return nothing + 1.0;
  Reals power = vector_power::exp2(exponent * vector_power::log2(base));
  return base > 0 ? power : nothing;
}

}  // namespace dtr
