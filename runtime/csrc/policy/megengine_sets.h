// MegEngine's neighbourhood as it was published, to be compared with: what must be recomputed so
// that a value's operator can run, and nothing for that operator itself. Against the paper's
// relaxation (evicted_classes.h) it lacks what was made from the value, the joining of what the
// program drops, and sums that hold: a value that comes back cuts itself out of its set, and where
// others lie below it in the union-find they lose the rest. Neighbours in one set are counted one
// by one. Source: MegEngine, master of October 2024, imperative/src/impl/interpreter.

#pragma once

#include <cstdint>

#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/graph/records.h"
#include "runtime/csrc/policy/evicted_classes.h"

namespace dtr {

class MegEngineSets {
 public:
  void evicted(Value& value);   // Chosen, not dropped: it joins what is missing around it.
  void returned(Value& value);  // It is back.
  void cut(Value& value);       // It goes, or is a constant from now on.
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
