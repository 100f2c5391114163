#include "runtime/csrc/evicted_classes.h"

namespace dtr {

EvictedClass* EvictedClasses::start(Nanos cost) {
  ++count_;
  return new EvictedClass{.cost = cost, .references = 1};
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
  for_each_input(value, merge);
  for_each_reader(value, merge);
  value.evicted_class = root;
}

void EvictedClasses::returned(Value& value) {
  find(value.evicted_class)->cost -= value.cost;
  unreference(value.evicted_class);
  value.evicted_class = nullptr;
}

Nanos EvictedClasses::cost(const Value& value) {
  Nanos sum = 0;
  for_each(value, [&](const EvictedClass& root) { sum += root.cost; });
  return sum;
}

// Path halving: every node met is hung under its grandparent.
EvictedClass* EvictedClasses::find(EvictedClass* node) {
  while (EvictedClass* parent = node->parent) {
    ++accesses_;
    EvictedClass* grandparent = parent->parent;
    if (!grandparent) return parent;
    node->parent = grandparent;
    ++grandparent->references;
    unreference(parent);
    node = grandparent;
  }
  return node;
}

void EvictedClasses::unreference(EvictedClass* node) {
  while (node && --node->references == 0) {
    EvictedClass* parent = node->parent;
    delete node;
    --count_;
    node = parent;
  }
}

}  // namespace dtr
