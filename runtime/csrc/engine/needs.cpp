// When values are needed again, and settings that change while the program runs.
//
// A value is needed when the program uses it next, which the tape foretells, or when a missing value
// that was made from it is needed, whichever comes first. Each loss and each return changes the
// needs of what lies behind, as far as they do change. While no tape foretells, nobody asks.

#include <algorithm>
#include <vector>

#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/graph/neighbours.h"

namespace dtr {

Nanos Engine::need_of(const Value& value) const {
  Nanos need = tapes_.next_use(value);
  for_each_reader(const_cast<Value&>(value), [&](const Value& made) {
    if (!made.resident()) need = std::min(need, made.need);
  });
  return need;
}

void Engine::update_need(Value& value) {
  std::vector<Value*> changed{&value};
  while (!changed.empty()) {
    Value& at = *changed.back();
    changed.pop_back();
    const Nanos need = need_of(at);
    if (need == at.need) continue;
    at.need = need;
    if (at.candidate != kNowhere) columns_.set_need(at);
    if (at.resident()) continue;
    for_each_input(at, [&](Value& input) { changed.push_back(&input); });
  }
}

void Engine::update_needs_behind(Value& value) {
  if (!tapes_.foretell()) return;
  for_each_input(value, [this](Value& input) { update_need(input); });
}

// After another tape is followed, or none.
void Engine::show_all_times() {
  if (tapes_.foretell()) {
    const std::unordered_set<Value*> values = reachable();
    for (Value* value : values) value->need = tapes_.next_use(*value);
    for (Value* value : values) {
      if (!value->resident()) update_needs_behind(*value);
    }
  }
  for (std::size_t row = 0; row < columns_.count(); ++row) show_times(*columns_.value(row));
}

void Engine::follow(const Heuristic& heuristic) {
  heuristic_ = heuristic;
  if (!heuristic.next_use) tapes_.forget();
  neighbourhood_.follow(heuristic.neighbourhood, reachable());
  selector_.follow(heuristic);
  show_all_times();
}

}  // namespace dtr
