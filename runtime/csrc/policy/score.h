// The parametric score. Its presets are the known heuristics; the lowest score is evicted first.
//
//     score = (c + n + epsilon)^cost_exp * recompute_penalty^recomputes
//             / ((size + fragmentation * free_neighbours)^size_exp
//                * (staleness + epsilon)^staleness_exp)
//
// c is the value's own cost, n that of its evicted neighbourhood (paper, section 4.1: h_DTR is all
// exponents 1). The penalty and the free neighbours are MegEngine's. An epsilon of one nanosecond
// keeps zero costs and just-touched values comparable; the paper's simulator has none, and takes a
// quotient by nothing as infinite, as is one of two infinities, which large exponents can make.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "dtr_alloc/csrc/units.h"

namespace dtr {

enum class NeighbourhoodKind { kNone, kEvictedClass, kFull, kAncestors, kMegEngine };
enum class Selection { kSingle, kSample, kRandom, kWindow };

struct Heuristic {
  NeighbourhoodKind neighbourhood = NeighbourhoodKind::kEvictedClass;
  double cost_exp = 1, size_exp = 1, staleness_exp = 1;
  double fragmentation = 0;
  double recompute_penalty = 1;
  Selection selection = Selection::kSample;
  Nanos epsilon = 1;
  std::uint64_t seed = 0;  // Of what selection draws.
};

// What a score is made of.
struct Terms {
  Nanos cost;  // c + n.
  Bytes size;
  Nanos staleness;
  std::int64_t recomputes;
  Bytes free_neighbours;
};

// pow() costs 20 to 50 ns and the exponents are 0 or 1 in all but tuned settings.
inline double raise(double base, double exponent) {
  if (exponent == 1) return base;
  if (exponent == 0) return 1;
  return std::pow(std::max(base, 0.0), exponent);  // The drift of evicted classes may pass zero.
}

inline double score(const Heuristic& h, const Terms& t) {
  double numerator = raise(static_cast<double>(t.cost + h.epsilon), h.cost_exp);
  if (h.recompute_penalty != 1) {
    numerator *= std::pow(h.recompute_penalty, static_cast<double>(t.recomputes));
  }
  double bytes =
      static_cast<double>(t.size) + h.fragmentation * static_cast<double>(t.free_neighbours);
  double denominator = raise(bytes, h.size_exp) *
                       raise(static_cast<double>(t.staleness + h.epsilon), h.staleness_exp);
  double quotient = numerator / denominator;
  return denominator > 0 && quotient == quotient ? quotient
                                                 : std::numeric_limits<double>::infinity();
}

// The same quotient rounded once, as exact arithmetic gives it, where every term is an integer or
// absent. Rounding the product of size and staleness first can put two near scores in the wrong
// order, and the reference simulator's integers don't.
bool integral(const Heuristic& heuristic);
double exact_score(const Heuristic& heuristic, const Terms& terms);

}  // namespace dtr
