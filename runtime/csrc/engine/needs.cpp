#include "runtime/csrc/engine/needs.h"

#include <algorithm>
#include <ranges>
#include <stdexcept>
#include <utility>

#include "runtime/csrc/graph/neighbours.h"

namespace dtr {

Nanos Needs::of(const Value& value) const {
  return value.need.round == round_ ? value.need.next : tapes_.length();
}

// Whether a value is needed when `made`, which was made from it, is.
bool Needs::counts(const Value& value, const Value& made) const {
  return !made.resident() || (value.stone && made.owned != kNowhere);
}

// Whether an input of the value may count it.
bool Needs::passes_on(const Value& value) const {
  return !value.resident() || (stones_.any() && value.owned != kNowhere);
}

Nanos Needs::least_behind(const Value& value) const {
  Nanos least = Tapes::kNever;
  for_each_reader(const_cast<Value&>(value), [&](const Value& made) {
    if (counts(value, made)) least = std::min(least, of(made));
  });
  return least;
}

// Follows what has changed about it. Returns whether its inputs are to be told, who were told
// `before`.
bool Needs::set(Value& value, Nanos& before) {
  if (value.constant()) return false;
  before = of(value);
  if (value.need.round != round_) {
    value.need.round = round_;
    value.need.behind = least_behind(value);
  }
  value.need.next = std::min(tapes_.next_use(value), value.need.behind);
  if (value.candidate != kNowhere) columns_.set_need(value.candidate, value.need.next);
  if (awaited_.has(value)) awaited_.set(value, first_need(value));
  return value.need.next != before && passes_on(value);
}

void Needs::update(Value& value) {
  Nanos before;
  if (!set(value, before)) return;
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
      if (set(input, told)) changed.emplace_back(&input, told);
    });
  }
}

// What it counts is not what it was.
void Needs::renew(Value& value) {
  if (!follows()) return;
  if (value.need.round == round_) value.need.behind = least_behind(value);
  update(value);
}

// Of a value that is there.
void Needs::renew_stones(Value& value) {
  for_each_input(value, [this](Value& input) {
    if (input.stone) renew(input);
  });
}

// A missing value was needed at `before`. Calls `changes(input)` for each that is to be updated.
template <class Changes>
void Needs::tell_inputs(Value& value, Nanos before, const Changes& changes) {
  const Nanos now = of(value);
  for_each_input(value, [&](Value& input) {
    if (input.constant()) return;
    if (input.need.round != round_) return changes(input);
    if (now < input.need.behind) {
      input.need.behind = now;
      changes(input);
    } else if (before == input.need.behind && before != now) {
      input.need.behind = least_behind(input);
      changes(input);
    }
  });
}

void Needs::update_behind(Value& value, Nanos before) {
  tell_inputs(value, before, [this](Value& input) { update(input); });
}

// It has lost its content: from now on its inputs are needed when it is.
void Needs::lost(Value& value) {
  if (follows()) update_behind(value, Tapes::kNever);
}

// It is back, or goes for good.
void Needs::returned(Value& value) {
  if (!follows()) return;
  const Nanos before = of(value), own = value.need.next;
  const std::uint32_t round = std::exchange(value.need.round, round_);
  value.need.next = Tapes::kNever;
  update_behind(value, before);
  value.need.next = own;
  value.need.round = round;
  if (value.resident() && passes_on(value)) renew_stones(value);
}

// ---- The tape

bool Needs::end_operator(Nanos cost) {
  if (!on_) return false;
  const bool foretold = tapes_.foretell();
  if (tapes_.end_operator(cost)) another_tape();
  return foretold;
}

void Needs::another_tape() {
  ++round_;
  behind_ = true;
}

void Needs::catch_up() {
  if (!std::exchange(behind_, false)) return;
  neighbourhood_.foretold(tapes_.foretell());
  if (tapes_.foretell()) {
    columns_.set_all_needs(tapes_.length());
    // The latest first: as a rule it is needed soonest, and then each value passes on one need.
    for (Value* value : std::views::reverse(tapes_.accessed())) {
      if (value) update(*value);
    }
  } else {
    for (std::size_t row = 0; row < columns_.count(); ++row) show(*columns_.value(row));
  }
  await_anew();
}

void Needs::check() const {
  awaited_.check();
  for (const auto& [need, value] : awaited_.entries()) {
    if (!follows()) return;
    const Nanos foretold = first_need(*value);
    const bool late = need == Tapes::kNever && foretold < tapes_.begin_of(0);
    if (need != foretold && !late) throw std::logic_error("engine: what is awaited has its need");
  }
}

void Needs::check(const Value& value) const {
  if (!follows() || !value.producer) return;
  if (of(value) != std::min(tapes_.next_use(value), least_behind(value))) {
    throw std::logic_error("engine: a need is that of the next use, direct or behind");
  }
}

}  // namespace dtr
