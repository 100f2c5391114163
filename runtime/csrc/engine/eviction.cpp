#include "runtime/csrc/engine/eviction.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/engine/held.h"
#include "runtime/csrc/engine/settle.h"

namespace dtr {
namespace {

// A value, and what is missing behind it; no more is counted than `enough`. A neighbourhood's cost
// would be an estimate, and counts what was made from the value, too.
Nanos to_recompute(const Value& value, Nanos enough) {
  std::unordered_set<Op*> seen{value.producer};
  std::vector<Op*> frontier{value.producer};
  Nanos cost = value.producer->cost;
  while (!frontier.empty() && cost < enough) {
    Op& op = *frontier.back();
    frontier.pop_back();
    for (std::uint32_t i = 0; i < op.use_count; ++i) {
      const Value& input = *op.uses()[i].value;
      if (input.resident() || !seen.insert(input.producer).second) continue;
      cost += input.producer->cost;
      frontier.push_back(input.producer);
    }
  }
  return cost;
}

}  // namespace

// By which scores are computed: while a tape foretells, minus the tape's (columns.h).
Nanos Eviction::score_clock() const {
  needs_.catch_up();
  return needs_.foretells() ? -needs_.now() : engine_.clock();
}

Window Eviction::cheapest_window(const Pool& pool, Bytes bytes) {
  return selector_.cheapest_window(pool, bytes, score_clock());
}

bool Eviction::evict_one(Shed shed) {
  Value* victim = orphans_.next();
  if (!victim) victim = selector_.choose(score_clock(), engine_.clock());
  if (victim) evict_victim(*victim, shed);
  return victim;
}

bool Eviction::evict_orphan() {
  Value* victim = orphans_.next();
  if (victim) evict_victim(*victim, Shed::kBehindVictim);
  return victim;
}

void Eviction::evict_victim(Value& victim, Shed shed) {
  if (sheds_ && shed == Shed::kBehindVictim && shed_behind(engine_, victim)) return;
  const bool together = victim.producer->together && !victim.uses;
  together ? evict_together(*victim.producer) : evict_or_move(victim);
}

// A recomputation that goes deep holds the other inputs of every operator on its way, for as long
// as it takes: with bad luck they fill the budget. So do the other arguments of the program's
// operator (bring_all_back). Where nothing else is left they may go, and are brought back before
// their operator runs. What is given up on the way to what was
// given up can multiply: there is an end to it when each recipe has run kPatience times on average.
bool Eviction::evict_waiting() {
  constexpr std::int64_t kPatience = 100;
  const EngineStats done = engine_.stats();
  if (done.rematerializations - runs_before_ > kPatience * done.ops) return false;
  Value* victim = selector_.choose_waiting(score_clock());
  if (!victim) return false;
  engine_.evict(*victim);
  return true;
}

void Eviction::evict_all() {
  // A value that another thread lets go may take its stepping stones along.
  for (std::size_t row = columns_.count(); row > 0; row = std::min(row - 1, columns_.count())) {
    if (Value& value = *columns_.value(row - 1); !value.locks) engine_.evict(value);
  }
}

void Eviction::move_all() {
  std::vector<Held> all;
  for (std::size_t row = 0; row < columns_.count(); ++row) {
    if (!columns_.value(row)->locks) all.emplace_back(engine_, *columns_.value(row));
  }
  for (Held& one : all) {
    evict_or_move(*one.value());
    one.release();
  }
}

Bytes Eviction::locked_bytes() const {
  Bytes sum = 0;
  for (std::size_t row = 0; row < columns_.count(); ++row) {
    const Value& value = *columns_.value(row);
    sum += value.locks ? value.size : 0;
  }
  return sum;
}

Bytes Eviction::waiting_bytes() const {
  Bytes sum = 0;
  for (std::size_t row = 0; row < columns_.count(); ++row) {
    const Value& value = *columns_.value(row);
    sum += value.locks > 0 && value.locks == value.waiting ? round_to_granule(value.size) : 0;
  }
  return sum;
}

Bytes Eviction::evictable_bytes() const {
  Bytes sum = 0;
  for (std::size_t row = 0; row < columns_.count(); ++row) {
    const Value& value = *columns_.value(row);
    sum += value.locks ? 0 : round_to_granule(value.size);
  }
  return sum;
}

void Eviction::evict_or_move(Value& value) {
  if (!engine_.moves()) return engine_.evict(value);
  if (!value.uses && !value.home) return;  // It goes with the last lock.
  const Transfer& transfer = *columns_.transfer();
  if (!value.movable() && !value.stone && transfer.takes(value)) {
    const Nanos cost = transfer.cost(value.size);
    Op* reload = to_recompute(value, cost) >= cost ? executor_.reload_for(value) : nullptr;
    if (reload) engine_.move(value, *reload);
  }
  engine_.evict(value);
}

// An output that other recipes read stays: each of them would have to wait for this one. To bring
// it back takes the whole run from now on.
void Eviction::evict_together(Op& op) {
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    Value* value = op.outputs()[i];
    if (!value || value->candidate == kNowhere) continue;
    if (value->uses) {
      value->cost = op.cost;
      needs_.show(*value);
    } else if (!value->locks) {
      engine_.evict(*value);
    }
  }
}

}  // namespace dtr
