// Maintains the paper's relaxed neighbourhood (section 4.1 and appendix C.2). Missing values that
// are neighbours form a class: a set of a union-find structure, with one running sum of costs. When
// a value comes back, its cost is subtracted from its class. But the class is not split, so it may
// hold values that no missing value connects any more. A query adds up the sums of the distinct
// classes next to a value, in O(neighbours); the exact sum (regions.h) takes O(region).
//
// A candidate's row (columns.h) caches its value's neighbouring classes, since they change less
// often than their sums. When a value is evicted or comes back, its neighbours' caches are cleared.
// A cache holds union-find nodes, which live until their values come back.
//
// A node counts references: one from its value, one from each node below it.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/graph/neighbours.h"
#include "runtime/csrc/graph/records.h"
#include "runtime/csrc/policy/columns.h"

namespace dtr {

struct EvictedClass {
  EvictedClass* parent = nullptr;
  Nanos cost = 0ns;  // At the root: the sum of its values' costs.
  std::int64_t references = 0;
  std::uint64_t seen = 0;  // The number of the last query that counted this root.
  std::int64_t met = 0;    // At a root: the mark of the last block at which a window search met it.
};

// Removes a reference to the class, and frees the class if this was the last one.
inline void unreference(Records& nodes, EvictedClass* node) {
  while (node && --node->references == 0) {
    EvictedClass* parent = node->parent;
    nodes.free(node);
    node = parent;
  }
}

class EvictedClasses {
 public:
  explicit EvictedClasses(ScoreColumns& columns) : columns_(columns) {}

  // Adds a value whose operator has not run yet. It was never evicted, so its class starts with
  // cost 0. After the run, returned() subtracts the value's cost nevertheless, as in the reference
  // simulator. This matters only if the class was merged with another one before.
  void expected(Value& value) {
    value.evicted_class = start(0ns);
    forget_around(value);
  }
  void lost(Value& value);
  void returned(Value& value);
  Nanos cost(std::size_t row);  // Sums a value's neighbouring classes; sets the column.
  void fill();
  Nanos walk(const Value& value, Near& near);
  void count_readers(bool count);  // Sets whether values made from a value are its neighbours.
  template <typename Visit>
  void for_each(std::size_t row, Visit visit);  // Visits each class among a value's neighbours.
  // Reserves `count` marks that are in no class's `met`; returns the first.
  std::int64_t new_marks(std::int64_t count) { return std::exchange(marks_, marks_ + count); }

  std::int64_t count() const { return nodes_.used(); }
  std::int64_t accesses() const { return accesses_; }

 private:
  EvictedClass* start(Nanos cost);
  EvictedClass* find(EvictedClass* node) {
    EvictedClass* parent = node->parent;
    if (!parent) return node;
    return parent->parent ? halve(node) : parent;
  }
  EvictedClass* halve(EvictedClass* node);
  template <typename Visit>
  void for_each_root(const Near& near, Visit visit);  // Visits each distinct root of the classes.
  void forget_around(Value& value);
  template <typename Visit>
  void for_each_near(const Value& value, const Visit& visit) const;
  const std::vector<EvictedClass*>& all(const Value& value);

  ScoreColumns& columns_;
  Records nodes_;
  bool readers_count_ = true;
  std::uint64_t stamp_ = 0;
  std::int64_t accesses_ = 0, marks_ = 1;
  std::vector<EvictedClass*> all_;
};

template <typename Visit>
[[gnu::always_inline]] inline void EvictedClasses::for_each_root(const Near& near, Visit visit) {
  std::array<EvictedClass*, Near::kMost> roots;
  for (std::size_t i = 0; i < near.count; ++i) {
    roots[i] = find(near.classes[i]);
    if (std::find(roots.begin(), roots.begin() + i, roots[i]) == roots.begin() + i)
      visit(*roots[i]);
  }
}

template <typename Visit>
[[gnu::always_inline]] inline void EvictedClasses::for_each(std::size_t row, Visit visit) {
  Near& near = columns_.near(row);
  if (!near.known) [[unlikely]]
    cost(row);
  if (!near.known) [[unlikely]] {
    for (EvictedClass* root : all(*columns_.value(row))) visit(*root);
    return;
  }
  for_each_root(near, visit);
}

}  // namespace dtr
