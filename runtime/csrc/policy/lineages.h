// The missing values that a tensor is computed from, exactly: its lineage.
//
// A row keeps its sum. A missing value that a walk came by is marked as counted. When a value goes
// or comes back, the rows that must count it, or did, are found through marked values, and forget
// their sums. A change costs as much as there are readers of such values.
//
// A walk costs as much as is missing. That is little in most programs. But behind a long chain, as
// an LSTM's, thousands of values are missing, and then each walk is long. Whoever asks can see
// whether a lineage was of more than kMany values.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/policy/columns.h"

namespace dtr {

class Lineages {
 public:
  static constexpr std::size_t kMany = 96;

  explicit Lineages(ScoreColumns& columns) : columns_(columns) {}

  void lost(Value& value);
  void returned(Value& value);
  // The value was given another input.
  void linked(Value& value);

  Nanos cost(std::size_t row);  // Its column too.
  // The column of neighbourhoods, for all that may go, or up to the first that is long.
  void fill(bool up_to_long);

  bool were_long() const { return were_long_; }  // One was of more than kMany values.
  void start_again() { were_long_ = false; }

  std::int64_t accesses() const { return accesses_; }
  void check(Value& value) const;  // Against a walk from nothing.

 private:
  void forget_ahead(Value& value);
  Nanos walk(Value& value);

  ScoreColumns& columns_;
  std::vector<Value*> met_;
  std::uint64_t stamp_ = 0;
  std::int64_t accesses_ = 0;
  bool were_long_ = false;
};

}  // namespace dtr
