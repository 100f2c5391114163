#include "runtime/csrc/policy/score.h"

#include <bit>

namespace dtr {
namespace {

// 128 bits hold the product of any size and any time.
__extension__ using Wide = unsigned __int128;

int bits(Wide number) {
  auto high = static_cast<std::uint64_t>(number >> 64);
  return high ? 64 + std::bit_width(high) : std::bit_width(static_cast<std::uint64_t>(number));
}

// Correctly rounded while the divisor has at most 72 bits: the quotient then has 55 or more before
// its sticky bit, two more than a double keeps.
double quotient(Wide number, Wide divisor) {
  if (number == 0) return 0;
  int shift = 127 - bits(number);
  number <<= shift;
  Wide whole = number / divisor;
  whole |= number % divisor != 0;
  return std::ldexp(static_cast<double>(whole), -shift);
}

}  // namespace

double exact_score(const Heuristic& h, const Terms& t) {
  std::int64_t cost = h.cost_exp == 0 ? 1 : (t.cost + h.epsilon).count();
  Wide divisor = 1;
  if (h.size_exp != 0) divisor *= static_cast<Wide>(t.size);
  if (h.staleness_exp != 0) divisor *= static_cast<Wide>((t.staleness + h.epsilon).count());
  if (divisor == 0) return std::numeric_limits<double>::infinity();
  return cost < 0 ? -quotient(-static_cast<Wide>(cost), divisor)
                  : quotient(static_cast<Wide>(cost), divisor);
}

}  // namespace dtr
