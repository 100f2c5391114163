// The cost of a value's evicted neighbourhood: what must be recomputed besides the value itself if
// it goes too.
//
// Exact neighbourhoods (paper section 4.1, e*) are costly to maintain. This is the paper's
// relaxation (section 4.1 and appendix C.2): evicted values that touch form a class in a union-find
// structure with one running sum of costs; a value that comes back is subtracted from its class,
// which is not split, so classes may hold phantom connections. Every way in which a value loses its
// content enters here: evicted, dropped by the program, superseded by a write, stolen by a replay.
//
// Classes are counted by their members and by the classes merged into them, so a class goes when
// its last value does.

#pragma once

#include <cstdint>

#include "runtime/csrc/graph.h"

namespace dtr {

struct EvictedClass {
  EvictedClass* parent = nullptr;
  Nanos cost = 0;  // At the root: the sum over members.
  std::int64_t references = 0;
  std::uint64_t seen = 0;  // Stamp of the last query that counted this root.
};

class Neighbourhood {
 public:
  ~Neighbourhood() = default;

  void lost(Value& value);         // `value` has just lost its content.
  void returned(Value& value);     // It is back, or its record is about to go.
  Nanos cost(const Value& value);  // Sum over the distinct classes next to `value`.

  std::int64_t classes() const { return classes_; }
  static Nanos own_cost(const Value& value) { return value.producer ? value.producer->cost : 0; }

 private:
  template <typename Visit>
  static void for_each_evicted_neighbour(const Value& value, Visit visit);
  EvictedClass* find(EvictedClass* node);
  void unreference(EvictedClass* node);

  std::uint64_t stamp_ = 0;
  std::int64_t classes_ = 0;
};

}  // namespace dtr
