// Computes MegEngine's neighbourhood as it was published, for comparison: the cost of recomputing
// the missing inputs of a value's operator. Unlike the paper's relaxation (evicted_classes.h), it
// leaves out values made from the value, and does not join values that the program drops. Its sums
// drift: when a value comes back, nodes below it in the union-find lose the rest of their set. A
// set counts once per neighbour in it. Source: MegEngine, master of October 2024,
// imperative/src/impl/interpreter.

#pragma once

#include <cstdint>

#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/graph/records.h"
#include "runtime/csrc/policy/evicted_classes.h"

namespace dtr {

class MegEngineSets {
 public:
  void evicted(Value& value);   // Not dropped: it joins its missing neighbours.
  void returned(Value& value);  // Its content is back.
  void cut(Value& value);       // It is removed, or becomes a constant.
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
