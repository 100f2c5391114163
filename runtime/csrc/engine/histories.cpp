// Histories: the recipes behind a value, and when they are not worth keeping (Engine::outweighed);
// what rests on a constant, and when that becomes constant instead of it (Engine::shed).
//
// A value that the program carries from step to step would drag all its history along, and a small
// result could hold on to the batch that it was computed from.

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/engine/held.h"

namespace dtr {

Engine::Resting Engine::resting_on(const Value& constant, Bytes enough, Busy busy) const {
  Resting found;
  std::unordered_set<const Value*> seen{&constant};
  std::vector<const Value*> frontier{&constant};
  while (!frontier.empty() && found.bytes < enough && (found.idle || busy == Busy::kCounts)) {
    const Value* value = frontier.back();
    frontier.pop_back();
    for (const Use* use = value->uses; use; use = use->next) {
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

// Walks the recipes behind a value, until they weigh `enough` or are kLongestHistory. Calls
// `visit(value)` for each that only recipes hold and that no operator can make.
template <class Visit>
Engine::History Engine::walk(const Value& value, Bytes enough, const Visit& visit) {
  const std::uint64_t mark = --walk_;
  std::vector<Op*> frontier{value.producer};
  History history;
  while (!frontier.empty() && history.recipes < kLongestHistory) {
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
        history.behind = std::max<int>(history.behind, input.history);
      } else {
        ++history.recipes;
        frontier.push_back(input.producer);
      }
    }
    if (history.weight() >= enough) break;
  }
  return history;
}

// The estimate counts one for each operator in a row, as if the program kept nothing. The history
// is walked where it may weigh too much by the estimate, or where that has grown by half since the
// last walk. What a backward pass will need is held by the program, so in training a walk ends at
// once.
bool Engine::weighs_too_much(Value& value) {
  constexpr int kLongestEstimate = std::numeric_limits<std::uint16_t>::max() / 2;
  if (value.history < std::min<Bytes>(value.size / kRecord, value.walked * 3 / 2)) return false;
  const History history = walk(value, value.size, [](Value&) {});
  const int estimate = std::min(history.recipes + history.behind, kLongestEstimate);
  value.history = value.walked = static_cast<std::uint16_t>(estimate);
  return history.recipes >= kLongestHistory || history.weight() >= value.size;
}

bool Engine::rests_on_absent(const Value& value) {
  const std::uint64_t mark = --walk_;
  std::vector<Op*> frontier{value.producer};
  for (int recipes = 0; !frontier.empty(); ++recipes) {
    if (recipes == kLongestHistory) return true;
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

void Engine::forsake(const Value& lost) {
  std::vector<Value*> resident = held_on(lost);
  std::erase_if(resident, [](const Value* value) { return !value->resident(); });
  settle_together(resident);
}

bool Engine::shed(Value& constant) {
  const Resting resting = resting_on(constant, constant.size + 1, Busy::kStops);
  if (!resting.idle || resting.bytes > constant.size) return false;
  const std::vector<Value*> held = held_on(constant);
  settle_together(held);
  return !held.empty();
}

bool Engine::shed_behind(Value& value) {
  std::vector<Held> kept;
  walk(value, std::numeric_limits<Bytes>::max(),
       [&](Value& constant) { kept.emplace_back(*this, constant); });
  bool any = false;
  for (const Held& constant : kept) any |= shed(*constant.value());
  return any;
}

}  // namespace dtr
