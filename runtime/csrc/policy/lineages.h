// The missing values that a tensor is computed from: its lineage.
//
// A row keeps its sum. A missing value that a walk came by is marked as counted. When a value goes
// or comes back, the rows that must count it, or did, are found through marked values, and forget
// their sums. A change costs as much as there are readers of such values.
//
// A walk costs as much as is missing. That is little in most programs, but behind a long chain, as
// an LSTM's, thousands of values are missing. So kLineage counts only the kNear values that are the
// fewest operators away, and more than these as kBeyond times these.
//
// The times of operators say too little of a long lineage. What is recomputed for one value needs
// memory at the same time, and pushes out other values, which then are recomputed too. So n missing
// values cost n * n * kCrowding more. Long chains of cheap operators are so cut into short ones. A
// few operators that take milliseconds cost next to nothing more. So do bytes, by a logical clock.

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

  // From now on a sum is of no more than the nearest `most` values. Where it is of all, it is no
  // more than their costs.
  void count(std::size_t most) { most_ = most; }

  void lost(Value& value);
  void returned(Value& value);
  // The value was given another input.
  void linked(Value& value);

  Nanos cost(std::size_t row);  // Its column too.
  void fill();                  // The column of neighbourhoods, for all that may go.

  std::int64_t accesses() const { return accesses_; }
  void check(Value& value) const;  // Against a walk from nothing.

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
