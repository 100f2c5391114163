// The parametric score. Its presets are the known heuristics; the lowest score is evicted first.
//
//     score = (c + n + eps_c)^cost_exp * recompute_penalty^recomputes
//             / ((size + fragmentation * free_neighbours)^size_exp * (staleness +
//             eps_t)^staleness_exp)
//
// c is the value's own cost, n that of its evicted neighbourhood (paper, section 4.1: h_DTR is all
// exponents 1). The penalty and the free neighbours are MegEngine's. eps_c and eps_t are one
// nanosecond: they keep zero costs and just-touched values comparable instead of equal.

#pragma once

#include <cmath>
#include <cstdint>

#include "dtr_alloc/csrc/arena.h"

namespace dtr {

enum class NeighbourhoodKind { kNone, kEvictedClass };
enum class Selection { kSingle, kSample };

struct Heuristic {
  NeighbourhoodKind neighbourhood = NeighbourhoodKind::kEvictedClass;
  double cost_exp = 1, size_exp = 1, staleness_exp = 1;
  double fragmentation = 0;
  double recompute_penalty = 1;
  Selection selection = Selection::kSample;
};

// pow() costs 20 to 50 ns and the exponents are 0 or 1 in all but tuned settings.
inline double raise(double base, double exponent) {
  if (exponent == 1) return base;
  if (exponent == 0) return 1;
  return std::pow(base, exponent);
}

inline double score(const Heuristic& h, Nanos cost, Bytes size, Nanos staleness,
                    std::int64_t recomputes, Bytes free_neighbours) {
  double numerator = raise(static_cast<double>(cost) + 1, h.cost_exp);
  if (h.recompute_penalty != 1) {
    numerator *= std::pow(h.recompute_penalty, static_cast<double>(recomputes));
  }
  double bytes = static_cast<double>(size) + h.fragmentation * static_cast<double>(free_neighbours);
  return numerator /
         (raise(bytes, h.size_exp) * raise(static_cast<double>(staleness) + 1, h.staleness_exp));
}

}  // namespace dtr
