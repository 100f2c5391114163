// Computes a value's score by a formula with parameters. The value of least score is evicted first.
// Presets of the parameters give the known heuristics.
//
//     score = (c + n + epsilon)^cost_exp * recompute_penalty^recomputes
//             / ((size + fragmentation * free_neighbours)^size_exp
//                * (staleness + epsilon)^staleness_exp)
//
// c is the value's own cost, n the cost of its evicted neighbourhood (paper, section 4.1: in h_DTR
// all exponents are 1). recompute_penalty and free_neighbours (bytes of the holes beside the
// value's block) are MegEngine's. If a cost or a staleness is 0, an epsilon of one nanosecond
// leaves the decision to the other terms; in the paper's simulator epsilon is 0. If the divisor is
// 0, or dividend and divisor are infinite (by large exponents), the score is infinite.
//
// The parameters are listed once, below. The fields of Heuristic, Python's view of them
// (bindings/bind_heuristic.cpp), the checks of runtime/heuristic.py, the space that
// runtime/tuning/tune.py searches and the kernel's arguments (device_scorer.cpp) follow from the
// list. docs/heuristics.md says how to add a parameter.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <type_traits>

#include "dtr_alloc/pool/csrc/units.h"

namespace dtr {

enum class NeighbourhoodKind { kNone, kEvictedClass, kLineage, kFull, kAncestors, kMegEngine };
enum class Selection { kSample, kSingle, kRandom, kWindow };

// The names of an enumeration's values for users, in the order of the values.
template <typename T>
inline constexpr const char* kNames[] = {""};
template <>
inline constexpr const char* kNames<NeighbourhoodKind>[] = {"none", "eqclass",   "lineage",
                                                            "full", "ancestors", "megengine"};
template <>
inline constexpr const char* kNames<Selection>[] = {"sample", "single", "random", "window"};
static_assert(std::size(kNames<NeighbourhoodKind>) == int(NeighbourhoodKind::kMegEngine) + 1);
static_assert(std::size(kNames<Selection>) == int(Selection::kWindow) + 1);

// The role says which values a parameter may have, and which value takes its term out of the score.
enum class ParameterRole {
  kName,      // A value of an enumeration.
  kExponent,  // 0 or more. 0 takes its term out; 1 needs no pow().
  kWeight,    // 0 or more. At 0 it has no effect.
  kSwitch,    // True or false.
  kFactor,    // Above 0, raised to a count. At 1 it has no effect. A kernel gets its log2.
  kNanos,     // Users cannot set it: 1 in a live run, 0 in the paper's simulator.
  kSeed,      // A seed of random numbers.
};

// Each parameter: type, name, default, role, sentence. A kernel's arguments have the same order.
#define DTR_SCORE_PARAMETERS(X)                                                                   \
  X(NeighbourhoodKind, neighbourhood, NeighbourhoodKind::kEvictedClass, kName,                    \
    "The missing values whose cost is n.")                                                        \
  X(double, cost_exp, 1, kExponent, "The exponent of the cost.")                                  \
  X(double, size_exp, 1, kExponent, "The exponent of the bytes.")                                 \
  X(double, staleness_exp, 1, kExponent, "The exponent of the time since the last use.")          \
  X(double, fragmentation, 0, kWeight,                                                            \
    "The weight of the free bytes beside the block, where a byte of its own weighs 1.")           \
  X(double, recompute_penalty, 1, kFactor, "A factor for each time it has been recomputed.")      \
  X(bool, next_use, false, kSwitch,                                                               \
    "Whether the time until the next need is the staleness, where a step repeats itself.")        \
  X(bool, orphans_first, false, kSwitch,                                                          \
    "Whether what the program let go, and nothing wanted rests on, goes before all.")             \
  X(bool, stepping_stones, false, kSwitch,                                                        \
    "Whether what the program let go stays where it makes something larger cheap.")               \
  X(Selection, selection, Selection::kSample, kName, "The candidates that are looked at.")        \
  X(Nanos, epsilon, 1ns, kNanos, "What is added to the cost and to the time since the last use.") \
  X(std::uint64_t, seed, 0, kSeed, "The seed of what selection draws.")

struct Heuristic {
#define DTR_FIELD(type, name, initial, role, sentence) type name = initial;
  DTR_SCORE_PARAMETERS(DTR_FIELD)
#undef DTR_FIELD
};

struct Parameter {
  const char* name;
  ParameterRole role;
  const char* sentence;
};

template <typename Visit>
[[gnu::always_inline]] constexpr void for_each_parameter(Visit&& visit) {
#define DTR_VISIT(type, name, initial, role, sentence) \
  visit(Parameter{#name, ParameterRole::role, sentence}, &Heuristic::name);
  DTR_SCORE_PARAMETERS(DTR_VISIT)
#undef DTR_VISIT
}

// Calls visit(role, value) for each number of the formula: exponents, weights and factors.
template <typename Visit>
[[gnu::always_inline]] constexpr void for_each_number(const Heuristic& h, Visit&& visit) {
  for_each_parameter([&](const Parameter& parameter, auto member) {
    if constexpr (std::is_same_v<decltype(member), double Heuristic::*>) {
      visit(parameter.role, h.*member);
    }
  });
}

// Returns whether each exponent is 0 or 1, each weight 0, each factor 1: then no pow() is needed.
[[gnu::always_inline]] constexpr bool plain(const Heuristic& h) {
  bool plain = true;
  for_each_number(h, [&](ParameterRole role, double value) {
    if (role != ParameterRole::kWeight && value == 1) return;
    plain = plain && role != ParameterRole::kFactor && value == 0;
  });
  return plain;
}

struct Terms {
  Nanos cost;  // c + n.
  Bytes size;
  Nanos staleness;
  std::int64_t recomputes;
  Bytes free_neighbours;
};

// Returns base^exponent. Avoids pow() (20 to 50 ns) for the exponents 0 and 1; only tuned
// heuristics have others.
inline double raise(double base, double exponent) {
  if (exponent == 1) return base;
  if (exponent == 0) return 1;
  return std::pow(std::max(base, 0.0), exponent);  // Sums of classes may drift below 0.
}

inline double score(const Heuristic& h, const Terms& t) {
  double numerator = raise(static_cast<double>((t.cost + h.epsilon).count()), h.cost_exp);
  if (h.recompute_penalty != 1) {
    numerator *= std::pow(h.recompute_penalty, static_cast<double>(t.recomputes));
  }
  double bytes =
      static_cast<double>(t.size) + h.fragmentation * static_cast<double>(t.free_neighbours);
  double denominator =
      raise(bytes, h.size_exp) *
      raise(static_cast<double>((t.staleness + h.epsilon).count()), h.staleness_exp);
  double quotient = numerator / denominator;
  return denominator > 0 && quotient == quotient ? quotient
                                                 : std::numeric_limits<double>::infinity();
}

// Returns the score of a plain() heuristic, rounded only once. score() also rounds the product of
// size and staleness, which can reverse the order of two near scores. The reference simulator
// multiplies integers, so its order is never reversed.
double exact_score(const Heuristic& heuristic, const Terms& terms);

}  // namespace dtr
