#include "runtime/csrc/neighbourhood.h"

namespace dtr {

template <typename Visit>
void Neighbourhood::for_each_evicted_neighbour(const Value& value, Visit visit) {
  if (value.producer) {
    Use* inputs = value.producer->uses();
    for (std::uint32_t i = 0; i < value.producer->use_count; ++i) {
      if (Value* input = inputs[i].value; input->evicted_class) visit(*input);
    }
  }
  for (Use* use = value.uses; use; use = use->next) {
    Value** outputs = use->op->outputs();
    for (std::uint32_t i = 0; i < use->op->output_count; ++i) {
      if (outputs[i] && outputs[i]->evicted_class) visit(*outputs[i]);
    }
  }
}

void Neighbourhood::lost(Value& value) {
  EvictedClass* root = new EvictedClass{.cost = own_cost(value), .references = 1};
  ++classes_;
  value.evicted_class = nullptr;  // Not yet its own neighbour.
  for_each_evicted_neighbour(value, [&](Value& neighbour) {
    EvictedClass* other = find(neighbour.evicted_class);
    if (other == root) return;
    other->parent = root;
    root->cost += other->cost;
    ++root->references;
  });
  value.evicted_class = root;
}

void Neighbourhood::returned(Value& value) {
  find(value.evicted_class)->cost -= own_cost(value);
  unreference(value.evicted_class);
  value.evicted_class = nullptr;
}

Nanos Neighbourhood::cost(const Value& value) {
  ++stamp_;
  Nanos sum = 0;
  for_each_evicted_neighbour(value, [&](Value& neighbour) {
    EvictedClass* root = find(neighbour.evicted_class);
    if (root->seen == stamp_) return;
    root->seen = stamp_;
    sum += root->cost;
  });
  return sum;
}

// Path halving: every node met is hung under its grandparent.
EvictedClass* Neighbourhood::find(EvictedClass* node) {
  while (EvictedClass* parent = node->parent) {
    EvictedClass* grandparent = parent->parent;
    if (!grandparent) return parent;
    node->parent = grandparent;
    ++grandparent->references;
    unreference(parent);
    node = grandparent;
  }
  return node;
}

void Neighbourhood::unreference(EvictedClass* node) {
  while (node && --node->references == 0) {
    EvictedClass* parent = node->parent;
    delete node;
    --classes_;
    node = parent;
  }
}

}  // namespace dtr
