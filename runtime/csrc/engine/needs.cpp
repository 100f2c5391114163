// When values are needed again, and settings that change while the program runs.
//
// A value is needed when the program uses it next, which the tape foretells, or when a missing
// value that was made from it is needed, whichever comes first. `behind` is the least of the
// latter, so that a use of the value itself costs nothing more. A loss, a return or another need
// goes to the inputs, and on through those that are missing, as long as it changes something. A
// stepping stone (stepping_stones.cpp) is needed when what it stays for is, resident or not. Nobody
// asks while no tape foretells, and constants have no need.
//
// A step begins with all needs alike: nothing was accessed in it, so all are behind its end. What
// has another `need_of_round` than the engine is such a value.

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/graph/neighbours.h"

namespace dtr {

Nanos Engine::need(const Value& value) const {
  return value.need_of_round == round_ ? value.need : tapes_.length();
}

// Whether a value is needed when `made`, which was made from it, is.
bool Engine::counts(const Value& value, const Value& made) const {
  return !made.resident() || (value.stone && made.owned != kNowhere);
}

// Whether an input of the value may count it.
bool Engine::passes_on(const Value& value) const {
  return !value.resident() || (stones_ > 0 && value.owned != kNowhere);
}

Nanos Engine::least_behind(const Value& value) const {
  Nanos least = Tapes::kNever;
  for_each_reader(const_cast<Value&>(value), [&](const Value& made) {
    if (counts(value, made)) least = std::min(least, need(made));
  });
  return least;
}

// Follows what has changed about it. Returns whether its inputs are to be told, who were told
// `before`.
bool Engine::set_need(Value& value, Nanos& before) {
  if (value.constant()) return false;
  before = need(value);
  if (value.need_of_round != round_) {
    value.need_of_round = round_;
    value.behind = least_behind(value);
  }
  value.need = std::min(tapes_.next_use(value), value.behind);
  if (value.candidate != kNowhere) columns_.set_need(value.candidate, value.need);
  if (awaited_.has(value)) awaited_.set(value, first_need(value));
  return value.need != before && passes_on(value);
}

void Engine::update_need(Value& value) {
  Nanos before;
  if (!set_need(value, before)) return;
  std::vector<std::pair<Value*, Nanos>> changed{{&value, before}};
  while (!changed.empty()) {
    const auto [at, was] = changed.back();
    changed.pop_back();
    if (at->resident()) {
      renew_stones(*at);
      continue;
    }
    tell_inputs(*at, was, [&](Value& input) {
      Nanos told;
      if (set_need(input, told)) changed.emplace_back(&input, told);
    });
  }
}

// What it counts is not what it was.
void Engine::renew_need(Value& value) {
  if (!tapes_.foretell()) return;
  if (value.need_of_round == round_) value.behind = least_behind(value);
  update_need(value);
}

// Of a value that is there.
void Engine::renew_stones(Value& value) {
  for_each_input(value, [this](Value& input) {
    if (input.stone) renew_need(input);
  });
}

// A missing value was needed at `before`. Calls `changes(input)` for each that is to be updated.
template <class Changes>
void Engine::tell_inputs(Value& value, Nanos before, const Changes& changes) {
  const Nanos now = need(value);
  for_each_input(value, [&](Value& input) {
    if (input.constant()) return;
    if (input.need_of_round != round_) return changes(input);
    if (now < input.behind) {
      input.behind = now;
      changes(input);
    } else if (before == input.behind && before != now) {
      input.behind = least_behind(input);
      changes(input);
    }
  });
}

void Engine::update_needs_behind(Value& value, Nanos before) {
  tell_inputs(value, before, [this](Value& input) { update_need(input); });
}

// It has lost its content: from now on its inputs are needed when it is.
void Engine::needs_after_loss(Value& value) {
  if (tapes_.foretell()) update_needs_behind(value, Tapes::kNever);
}

// It is back, or goes for good.
void Engine::needs_after_return(Value& value) {
  if (!tapes_.foretell()) return;
  const Nanos before = need(value), own = value.need;
  const std::uint32_t round = std::exchange(value.need_of_round, round_);
  value.need = Tapes::kNever;
  update_needs_behind(value, before);
  value.need = own;
  value.need_of_round = round;
  if (value.resident() && passes_on(value)) renew_stones(value);
}

// In the middle of a step another tape is followed: by falling urgency, so that each value passes
// its need on once.
void Engine::find_all_needs() {
  using Needed = std::pair<Nanos, Value*>;  // An older need of a value is passed over.
  std::priority_queue<Needed, std::vector<Needed>, std::greater<>> passing;
  const std::unordered_set<Value*> values = reachable();
  for (Value* value : values) {
    value->need_of_round = round_;
    value->behind = Tapes::kNever;
    value->need = tapes_.next_use(*value);
  }
  for (Value* value : values) {
    if (passes_on(*value)) passing.emplace(value->need, value);
  }
  while (!passing.empty()) {
    const auto [need, value] = passing.top();
    passing.pop();
    if (need != value->need) continue;
    for_each_input(*value, [&, need = need, made = value](Value& input) {
      if (!counts(input, *made)) return;
      input.behind = std::min(input.behind, need);
      if (input.behind >= input.need) return;
      input.need = input.behind;
      if (passes_on(input)) passing.emplace(input.need, &input);
    });
  }
}

void Engine::end_step() {
  if (!heuristic_.next_use) return;
  // What the program holds is needed behind the end.
  for (const Value* value : owned_) tapes_.outlives(*value);
  if (!tapes_.end_step()) return;
  ++round_;
  neighbourhood_.foretold(tapes_.foretell());
  tapes_.foretell() ? columns_.set_all_needs(tapes_.length()) : show_all_times();
  await_anew();
}

void Engine::another_tape() {
  ++round_;
  neighbourhood_.foretold(tapes_.foretell());
  if (tapes_.foretell()) find_all_needs();
  show_all_times();
  await_anew();
}

void Engine::show_all_times() {
  for (std::size_t row = 0; row < columns_.count(); ++row) show_times(*columns_.value(row));
}

void Engine::follow(const Heuristic& heuristic) {
  heuristic_ = heuristic;
  if (!heuristic.next_use) tapes_.forget();
  neighbourhood_.foretold(tapes_.foretell());
  neighbourhood_.follow(heuristic.neighbourhood, reachable());
  selector_.follow(heuristic);
  find_all_orphans();
  if (!heuristic.stepping_stones) let_all_stones_go();
  show_all_times();
}

}  // namespace dtr
