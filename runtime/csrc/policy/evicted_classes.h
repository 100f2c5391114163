// Keeps the paper's relaxed neighbourhood (section 4.1 and appendix C.2). Evicted neighbours form a
// class in a union-find structure with one running sum of costs. The cost of a value that comes
// back is subtracted from its class, but the class is not split, so it may hold phantom
// connections. A query sums the distinct classes next to a value: O(neighbours). The exact sum
// (regions.h) is O(region).
//
// A candidate's row (columns.h) caches which classes are next to its value, since neighbours change
// less often than sums. The eviction or return of a value clears its neighbours' caches. A cache
// holds union-find nodes of missing neighbours, which live until these come back.
//
// A class counts its members and the classes merged into it as references.

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
  Nanos cost = 0ns;  // At the root: the sum over members.
  std::int64_t references = 0;
  std::uint64_t seen = 0;  // Stamp of the last query that counted this root.
  std::int64_t met = 0;    // At a root: marks the block where a window search last met it.
};

// Removes a reference to the class, and frees it with the last one.
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

  // Adds a value whose operator has not run yet: missing, but not lost, so its class starts with no
  // cost. After the run, the value's cost is subtracted all the same, as in the reference
  // simulator; this matters only if the class was merged meanwhile.
  void expected(Value& value) {
    value.evicted_class = start(0ns);
    forget_around(value);
  }
  void lost(Value& value);
  void returned(Value& value);
  Nanos cost(std::size_t row);  // Of the classes next to the row's value; sets the column.
  void fill();                  // Sets the column `neighbourhood` of all evictable rows.
  Nanos walk(const Value& value, Near& near);
  // Sets whether classes made from a value count, or only the classes of its inputs.
  void count_readers(bool count);
  // Calls `visit` with each distinct class next to the row's value.
  template <typename Visit>
  void for_each(std::size_t row, Visit visit);
  // Reserves `count` marks that no class has; returns the first.
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
  // Calls `visit` with each distinct root of the cached classes, which may have merged since.
  template <typename Visit>
  void for_each_root(const Near& near, Visit visit);
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
