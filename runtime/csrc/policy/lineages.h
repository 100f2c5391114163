// Sums the costs of the missing values that a tensor is computed from: its lineage.
//
// Each row caches its sum. A walk marks the missing values that it meets as counted. When a value
// is lost or comes back, the rows whose sums change are found through marked values, and drop their
// sums. A change visits all readers of such values.
//
// A walk visits all missing values. They are few in most programs, but thousands behind a long
// chain, such as an LSTM's. So kLineage counts only the kNear values that are the fewest operators
// away, and multiplies the sum by kBeyond if there are more.
//
// Times of operators understate a long lineage. Values recomputed together need memory at the same
// time, and displace values that then are recomputed, too. So n missing values cost n * n *
// kCrowding more. This cuts long chains of cheap operators into short ones. It adds next to nothing
// to a few operators that take milliseconds, or to bytes on a logical clock.

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

  // From now on a sum has at most the nearest `most` values. With kAll, it is just the sum of their
  // costs.
  void count(std::size_t most) { most_ = most; }

  void lost(Value& value);
  void returned(Value& value);
  // The value was given another input.
  void linked(Value& value);

  Nanos cost(std::size_t row);  // Sets its column, too.
  void fill();                  // Sets the column of neighbourhoods of all evictable rows.

  std::int64_t accesses() const { return accesses_; }
  void check(Value& value) const;  // Compares with a fresh walk.

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
