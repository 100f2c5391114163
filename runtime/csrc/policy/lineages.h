// The missing values that a tensor is computed from: exactly, where they are few.
//
// An exact sum chooses better victims than evicted classes do (evicted_classes.h). A class also
// holds what was made from the same inputs, and it is not split when values come back. But an exact
// sum costs a walk over everything that is missing, and behind a long chain, as an LSTM's, thousands
// of values are. So a walk ends after kMost values, and what rests on more counts its classes.
//
// A row keeps its sum. A missing value that a walk came by is marked as counted. When a value goes
// or comes back, the rows that counted it are found through marked values, and forget their sums.
// So this takes no more time than the walks did.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/evicted_classes.h"

namespace dtr {

class Lineages {
 public:
  static constexpr std::size_t kMost = 32;

  // `classes` follows the same values, and counts no readers.
  Lineages(ScoreColumns& columns, EvictedClasses& classes) : columns_(columns), classes_(classes) {}

  void lost(Value& value);
  void returned(Value& value);
  // The value was given another input.
  void linked(Value& value);

  Nanos cost(std::size_t row);  // Its column too.
  void fill();                  // The column of neighbourhoods, for all that may go.

  std::int64_t accesses() const { return accesses_; }
  void check(const Value& value);  // Against a walk from nothing.

 private:
  void forget_ahead(Value& value);
  bool walk(const Value& value, Nanos& sum);

  ScoreColumns& columns_;
  EvictedClasses& classes_;
  std::vector<Value*> met_;
  std::uint64_t stamp_ = 0;
  std::int64_t accesses_ = 0;
};

}  // namespace dtr
