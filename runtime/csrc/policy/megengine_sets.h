// Computes MegEngine's neighbourhood as it was published, for comparison: the cost of recomputing
// the missing inputs and other missing outputs of a value's operator. Unlike the paper's relaxation
// (evicted_classes.h), it leaves out values made from the value, and values that the program drops
// join no sets. Its sums become wrong: when a value comes back, the values below it in the
// union-find leave their set. A set's cost counts once for each neighbour in it. Source: MegEngine,
// master of October 2024, imperative/src/impl/interpreter.

#pragma once

#include <cstdint>

#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/graph/records.h"
#include "runtime/csrc/policy/evicted_classes.h"

namespace dtr {

class MegEngineSets {
 public:
  void evicted(Value& value);   // Joins its set with its missing neighbours'.
  void returned(Value& value);  // Takes it out of its set.
  void cut(Value& value);       // For a value that is removed or made a constant.
  Nanos cost(const Value& value);

  std::int64_t count() const { return nodes_.used(); }
  std::int64_t accesses() const { return accesses_; }

 private:
  EvictedClass* node(Value& value);
  EvictedClass* find(EvictedClass* node);

  Records nodes_;
  std::int64_t accesses_ = 0;
};

}  // namespace dtr
