// Sums the costs of a value's lineage: its missing inputs, their missing inputs, and so on.
//
// Each row of the columns caches its value's sum. A walk computes a sum, and marks the missing
// values that it counts. When a value loses its content or gets it back, we visit its readers
// (values made from it), the readers of marked readers, and so on, and clear the cached sums that
// we reach.
//
// A lineage has few values in most programs, but thousands in a long chain, such as an LSTM's. So
// NeighbourhoodKind::kLineage counts only the kNear missing values that are the fewest operators
// away, and multiplies the sum by kBeyond if the lineage has more.
//
// The sum of operators' times is too low for a long lineage: values that are recomputed together
// need memory at the same time, so other values are evicted, and later recomputed, too. So we add n
// * n * kCrowding for n missing values. This keeps some values within long chains of cheap
// operators in memory. The term hardly matters for a few operators of milliseconds, or if costs
// count bytes instead of time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/policy/columns.h"

namespace dtr {

class Lineages {
 public:
  static constexpr std::size_t kNear = 48, kAll = std::numeric_limits<std::size_t>::max();
  static constexpr int kBeyond = 4;
  static constexpr Nanos kCrowding = 2us;

  explicit Lineages(ScoreColumns& columns) : columns_(columns) {}

  // From now on, a walk counts at most the nearest `most` values. With kAll, a lineage's cost is
  // the plain sum of its values' costs, without kBeyond and kCrowding.
  void count(std::size_t most) { most_ = most; }

  void lost(Value& value);
  void returned(Value& value);
  void linked(Value& value);  // Call it when the value has got a new input.

  Nanos cost(std::size_t row);  // The cost of the row's lineage; sets its column.
  void fill();

  std::int64_t accesses() const { return accesses_; }
  void check(Value& value) const;  // Throws if a new walk finds another sum.

 private:
  void forget_ahead(Value& value);
  Nanos walk(Value& value);
  Nanos together(Nanos costs, std::size_t missing, bool more) const;

  ScoreColumns& columns_;
  std::vector<Value*> met_;
  std::uint64_t stamp_ = 0;
  std::int64_t accesses_ = 0;
  std::size_t most_ = kAll;
};

}  // namespace dtr
