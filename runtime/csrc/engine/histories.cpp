#include "runtime/csrc/engine/histories.h"

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

namespace dtr {

Histories::Resting Histories::resting_on(const Value& constant, Bytes enough, Busy busy) const {
  Resting found;
  const auto over = [&] { return found.bytes >= enough || (!found.idle && busy == Busy::kStops); };
  std::unordered_set<const Value*> seen{&constant};
  std::vector<const Value*> frontier{&constant};
  while (!frontier.empty() && !over()) {
    const Value* value = frontier.back();
    frontier.pop_back();
    for (const Use* use = value->uses; use && !over(); use = use->next) {  // It may have thousands.
      for (std::uint32_t i = 0; i < use->op->output_count; ++i) {
        const Value* output = use->op->outputs()[i];
        if (!output || !seen.insert(output).second) continue;
        frontier.push_back(output);
        if (!output->home) continue;
        found.bytes += output->size;
        found.idle &= output->resident() && !output->locks;
      }
    }
  }
  return found;
}

// Walks the recipes behind a value, until they weigh `enough` or are kLongest. Calls
// `visit(value)` for each that only recipes hold and that no operator can make.
template <class Visit>
Histories::Weight Histories::walk(const Value& value, Bytes enough, const Visit& visit) {
  const std::uint64_t mark = --walk_;
  std::vector<Op*> frontier{value.producer};
  Weight history;
  while (!frontier.empty() && history.recipes < kLongest) {
    Op& op = *frontier.back();
    frontier.pop_back();
    for (std::uint32_t i = 0; i < op.use_count; ++i) {
      Value& input = *op.uses()[i].value;
      if (std::exchange(input.mark, mark) == mark) continue;
      if (input.constant() || input.movable()) {
        const bool kept =
            input.constant() ? executor_.kept_for_recipes(input) : !input.home && input.resident();
        if (kept) history.kept += input.size, visit(input);
      } else if (input.home) {
        history.behind = std::max<int>(history.behind, input.history.recipes);
      } else {
        ++history.recipes;
        frontier.push_back(input.producer);
      }
    }
    if (history.bytes() >= enough) break;
  }
  return history;
}

// The estimate counts one for each operator in a row, as if the program kept nothing. The history
// is walked where it may weigh too much by the estimate, or where that has grown by half since the
// last walk. What a backward pass will need is held by the program, so in training a walk ends at
// once.
bool Histories::weighs_too_much(Value& value) {
  constexpr int kLongestEstimate = std::numeric_limits<std::uint16_t>::max() / 2;
  if (value.history.recipes < std::min<Bytes>(value.size / kRecord, value.history.walked * 3 / 2))
    return false;
  const Weight history = walk(value, value.size, [](Value&) {});
  const int estimate = std::min(history.recipes + history.behind, kLongestEstimate);
  value.history.recipes = value.history.walked = static_cast<std::uint16_t>(estimate);
  return history.recipes >= kLongest || history.bytes() >= value.size;
}

bool Histories::rests_on_absent(const Value& value) {
  const std::uint64_t mark = --walk_;
  std::vector<Op*> frontier{value.producer};
  for (int recipes = 0; !frontier.empty(); ++recipes) {
    if (recipes == kLongest) return true;
    Op& op = *frontier.back();
    frontier.pop_back();
    for (std::uint32_t i = 0; i < op.use_count; ++i) {
      Value& input = *op.uses()[i].value;
      if (std::exchange(input.mark, mark) == mark) continue;
      if (input.absent) return true;
      if (input.producer) frontier.push_back(input.producer);
    }
  }
  return false;
}

std::vector<Value*> Histories::held_on(const Value& constant) const {
  std::unordered_set<const Op*> seen;
  std::vector<const Value*> frontier{&constant};
  std::vector<Value*> live;
  while (!frontier.empty()) {
    const Value* value = frontier.back();
    frontier.pop_back();
    for (Use* use = value->uses; use; use = use->next) {
      if (!seen.insert(use->op).second) continue;
      for (std::uint32_t i = 0; i < use->op->output_count; ++i) {
        Value* output = use->op->outputs()[i];
        if (!output) continue;
        frontier.push_back(output);
        if (output->home) live.push_back(output);
      }
    }
  }
  return live;
}

std::vector<Value*> Histories::kept_behind(const Value& value) {
  std::vector<Value*> kept;
  walk(value, std::numeric_limits<Bytes>::max(),
       [&](Value& constant) { kept.push_back(&constant); });
  return kept;
}

}  // namespace dtr
