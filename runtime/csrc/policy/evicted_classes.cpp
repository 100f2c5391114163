#include "runtime/csrc/policy/evicted_classes.h"

#include <algorithm>

namespace dtr {

EvictedClass* EvictedClasses::start(Nanos cost) {
  return nodes_.make(EvictedClass{.cost = cost, .references = 1});
}

void EvictedClasses::lost(Value& value) {
  EvictedClass* root = start(value.cost);
  const auto merge = [&](Value& neighbour) {
    if (!neighbour.evicted_class) return;
    EvictedClass* other = find(neighbour.evicted_class);
    if (other == root) return;
    other->parent = root;
    root->cost += other->cost;
    ++root->references;
  };
  for_each_input(value, [&](Value& input) {
    if (readers_count_) columns_.forget_near(input);
    merge(input);
  });
  for_each_reader(value, [&](Value& reader) {
    columns_.forget_near(reader);
    merge(reader);
  });
  value.evicted_class = root;
}

void EvictedClasses::returned(Value& value) {
  find(value.evicted_class)->cost -= value.cost;
  unreference(nodes_, value.evicted_class);
  value.evicted_class = nullptr;
  forget_around(value);
}

void EvictedClasses::forget_around(Value& value) {
  const auto look = [&](Value& neighbour) { columns_.forget_near(neighbour); };
  if (readers_count_) for_each_input(value, look);
  for_each_reader(value, look);
}

Nanos EvictedClasses::cost(std::size_t row) {
  Near& near = columns_.near(row);
  Nanos sum = 0ns;
  if (!near.known) {
    sum = walk(*columns_.value(row), near);
  } else {
    for_each_root(near, [&](EvictedClass& root) { sum += root.cost; });
    accesses_ += near.count;
  }
  columns_.set_neighbourhood(row, sum);
  return sum;
}

void EvictedClasses::fill() {
  ColumnsView columns = columns_.view();
  for (std::size_t row = 0; row < columns.count; ++row) {
    const Near& near = columns_.near(row);
    if (near.known && near.count == 0)
      continue;  // Nothing is missing there, and the column says so.
    if (columns.evictable[row]) cost(row);
  }
}

template <typename Visit>
void EvictedClasses::for_each_near(const Value& value, const Visit& visit) const {
  for_each_input(const_cast<Value&>(value), visit);
  if (readers_count_) for_each_reader(const_cast<Value&>(value), visit);
}

void EvictedClasses::count_readers(bool count) {
  if (std::exchange(readers_count_, count) != count) columns_.forget_all_near();
}

Nanos EvictedClasses::walk(const Value& value, Near& near) {
  Nanos sum = 0ns;
  std::size_t classes = 0;
  ++stamp_;
  const auto look = [&](Value& neighbour) {
    ++accesses_;
    if (!neighbour.evicted_class) return;
    EvictedClass* root = find(neighbour.evicted_class);
    if (root->seen == stamp_) return;
    root->seen = stamp_;
    sum += root->cost;
    if (classes < Near::kMost) near.classes[classes] = neighbour.evicted_class;
    ++classes;
  };
  for_each_near(value, look);
  near.known = classes <= Near::kMost;  // Few have more; those are walked every time.
  near.count = near.known ? classes : 0;
  return sum;
}

const std::vector<EvictedClass*>& EvictedClasses::all(const Value& value) {
  all_.clear();
  const auto look = [&](Value& neighbour) {
    if (!neighbour.evicted_class) return;
    EvictedClass* root = find(neighbour.evicted_class);
    if (std::find(all_.begin(), all_.end(), root) == all_.end()) all_.push_back(root);
  };
  for_each_near(value, look);
  return all_;
}

// Path halving: every node met is hung under its grandparent.
EvictedClass* EvictedClasses::halve(EvictedClass* node) {
  while (EvictedClass* parent = node->parent) {
    ++accesses_;
    EvictedClass* grandparent = parent->parent;
    if (!grandparent) return parent;
    node->parent = grandparent;
    ++grandparent->references;
    unreference(nodes_, parent);
    node = grandparent;
  }
  return node;
}

}  // namespace dtr
