#include "runtime/csrc/engine/reachable.h"

namespace dtr {

std::unordered_set<Value*> reachable(const ScoreColumns& candidates,
                                     const std::vector<Value*>& owned) {
  std::unordered_set<Value*> values;
  std::vector<Value*> frontier;
  const auto reach = [&](Value* value) {
    if (value && values.insert(value).second) frontier.push_back(value);
  };
  for (std::size_t row = 0; row < candidates.count(); ++row) reach(candidates.value(row));
  for (Value* value : owned) reach(value);
  while (!frontier.empty()) {
    Value* value = frontier.back();
    frontier.pop_back();
    for (std::uint32_t i = 0; value->producer && i < value->producer->use_count; ++i) {
      reach(value->producer->uses()[i].value);
    }
    for (const Use* use = value->uses; use; use = use->next) {
      for (std::uint32_t i = 0; i < use->op->output_count; ++i) reach(use->op->outputs()[i]);
    }
  }
  return values;
}

}  // namespace dtr
