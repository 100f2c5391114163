// Sums the costs of the missing values that a tensor is computed from: its lineage.
//
// Each row caches its sum. A walk computes a sum, and marks the missing values that it counts. When
// a value is lost or comes back, we follow its readers through marked values, and drop the sums of
// the rows that we reach. This visits all their readers.
//
// A walk would visit all missing values: few in most programs, but thousands in a long chain, such
// as an LSTM's. So NeighbourhoodKind::kLineage counts only the kNear values that are the fewest
// operators away, and multiplies the sum by kBeyond if there are more.
//
// Operators' times understate a long lineage: values recomputed together need memory at the same
// time, and displace values that are then recomputed, too. So n missing values cost n * n *
// kCrowding more. This term cuts long chains of cheap operators. It hardly matters for a few
// operators of milliseconds, or on a logical clock, which counts bytes.

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

  // From now on a sum has at most the nearest `most` values. With kAll, it is the plain sum of
  // costs.
  void count(std::size_t most) { most_ = most; }

  void lost(Value& value);
  void returned(Value& value);
  // Call it after adding an input to the value.
  void linked(Value& value);

  Nanos cost(std::size_t row);  // Sets the row's column, too.
  void fill();                  // Sets the column `neighbourhood` of all evictable rows.

  std::int64_t accesses() const { return accesses_; }
  void check(Value& value) const;  // Throws if a new walk differs.

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
