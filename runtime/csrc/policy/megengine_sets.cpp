#include "runtime/csrc/policy/megengine_sets.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/csrc/graph/neighbours.h"

namespace dtr {
namespace {

// Calls `visit` with each missing input of the operators that made `value` and its views, once for
// each place where the input is read, and with each other missing output of these operators.
template <typename Visit>
void for_each_missing(Value& value, Visit visit) {
  const auto look = [&](Value& neighbour) {
    if (!neighbour.resident()) visit(neighbour);
  };
  for_each_input(value, look);
  for (Value* member = &value; member; member = member->views) {
    if (!member->producer) continue;
    for (std::uint32_t i = 0; i < member->producer->output_count; ++i) {
      Value* output = member->producer->outputs()[i];
      if (output && &output->storage() != &value) look(output->storage());
    }
  }
}

}  // namespace

// A value without a node has a set of its own.
EvictedClass* MegEngineSets::node(Value& value) {
  if (!value.evicted_class) {
    value.evicted_class = nodes_.make(EvictedClass{.cost = value.cost, .references = 1});
  }
  return value.evicted_class;
}

// Hangs every node on the way under the root, as MegEngine does by recursion: the shape decides
// which values lose their set when one is cut out.
EvictedClass* MegEngineSets::find(EvictedClass* node) {
  std::vector<EvictedClass*> way{node};
  while (way.back()->parent) way.push_back(way.back()->parent);
  accesses_ += static_cast<std::int64_t>(way.size());
  EvictedClass* root = way.back();
  for (std::size_t i = way.size() - 1; i-- > 0;) {
    if (way[i]->parent == root) continue;
    ++root->references;
    unreference(nodes_, std::exchange(way[i]->parent, root));
  }
  return root;
}

void MegEngineSets::evicted(Value& value) {
  node(value);
  for_each_missing(value, [&](Value& neighbour) {
    EvictedClass* other = find(node(neighbour));
    EvictedClass* root = find(value.evicted_class);
    if (other == root) return;
    root->cost += other->cost;
    ++root->references;
    other->parent = root;
  });
}

void MegEngineSets::returned(Value& value) {
  EvictedClass* node = value.evicted_class;
  if (!node) return;
  find(node)->cost -= value.cost;
  unreference(nodes_, std::exchange(node->parent, nullptr));
  node->cost = value.cost;
}

void MegEngineSets::cut(Value& value) {
  unreference(nodes_, std::exchange(value.evicted_class, nullptr));
}

Nanos MegEngineSets::cost(const Value& value) {
  Nanos sum = 0ns;
  for_each_missing(const_cast<Value&>(value), [&](Value& neighbour) {
    ++accesses_;
    EvictedClass* node = neighbour.evicted_class;
    sum += node ? std::max(find(node)->cost, neighbour.cost) : neighbour.cost;
  });
  return sum;
}

}  // namespace dtr
