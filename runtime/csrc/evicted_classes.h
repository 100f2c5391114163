// The paper's relaxed neighbourhood (section 4.1 and appendix C.2): evicted values that touch form a
// class in a union-find structure with one running sum of costs; a value that comes back is
// subtracted from its class, which is not split, so classes may hold phantom connections. A query
// sums the distinct classes next to a value: O(neighbours), where the exact sum is O(region).
//
// Classes are counted by their members and by the classes merged into them, so a class goes when
// its last value does.

#pragma once

#include <cstdint>

#include "runtime/csrc/graph.h"
#include "runtime/csrc/neighbours.h"

namespace dtr {

struct EvictedClass {
  EvictedClass* parent = nullptr;
  Nanos cost = 0;  // At the root: the sum over members.
  std::int64_t references = 0;
  std::uint64_t seen = 0;  // Stamp of the last query that counted this root.
  std::int64_t in_window = 0;  // Members of the window now looked at that are next to it (window.h).
};

class EvictedClasses {
 public:
  // A value whose operator has yet to run is missing, but nothing has been lost: its class starts
  // at nothing. Once it is there its cost is subtracted all the same, as the reference simulator
  // does, which matters only if the class was merged meanwhile.
  void expected(Value& value) { value.evicted_class = start(0); }
  void lost(Value& value);
  void returned(Value& value);
  Nanos cost(const Value& value);
  // Calls `visit` with each distinct class next to `value`.
  template <typename Visit>
  void for_each(const Value& value, Visit visit);

  std::int64_t count() const { return count_; }
  std::int64_t accesses() const { return accesses_; }

 private:
  EvictedClass* start(Nanos cost);
  EvictedClass* find(EvictedClass* node);
  void unreference(EvictedClass* node);

  std::uint64_t stamp_ = 0;
  std::int64_t count_ = 0, accesses_ = 0;
};

template <typename Visit>
void EvictedClasses::for_each(const Value& value, Visit visit) {
  ++stamp_;
  const auto look = [&](Value& neighbour) {
    ++accesses_;
    if (!neighbour.evicted_class) return;
    EvictedClass* root = find(neighbour.evicted_class);
    if (root->seen == stamp_) return;
    root->seen = stamp_;
    visit(*root);
  };
  for_each_input(const_cast<Value&>(value), look);
  for_each_reader(const_cast<Value&>(value), look);
}

}  // namespace dtr
