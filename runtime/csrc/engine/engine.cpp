#include "runtime/csrc/engine/engine.h"

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <unordered_set>
#include <utility>

#include "dtr_alloc/csrc/pool.h"
#include "runtime/csrc/engine/held.h"

namespace dtr {

namespace {

// Of the outputs that are evicted together each has a share of the cost, by its size.
Nanos share(Nanos cost, const Value& value, Bytes all) {
  return Nanos{static_cast<std::int64_t>(static_cast<double>(cost.count()) *
                                         static_cast<double>(value.size) /
                                         static_cast<double>(all))};
}

}  // namespace

// ---- Recording ----------------------------------------------------------------------------------

Op* Engine::begin(std::uint32_t inputs, std::uint16_t outputs, std::size_t payload_bytes) {
  std::size_t bytes = sizeof(Op) + inputs * sizeof(Use) + outputs * sizeof(Value*) + payload_bytes;
  Op* op = new (::operator new(bytes)) Op{.use_count = inputs, .output_count = outputs};
  for (std::uint32_t i = 0; i < inputs; ++i) op->uses()[i] = Use{nullptr, op, nullptr, nullptr};
  std::fill_n(op->outputs(), outputs, nullptr);
  return op;
}

void Engine::read(Op& op, std::uint32_t index, Value& value) {
  Use& use = op.uses()[index];
  use.value = &value;
  use.next = value.uses;
  use.link = &value.uses;
  if (value.uses) value.uses->link = &use.next;
  value.uses = &use;
}

Value& Engine::write(Op& op, std::uint16_t output, Bytes size, void* home, void* data) {
  Value* value = new Value{.size = size, .producer = &op, .home = home, .data = data};
  value->output = output;
  op.outputs()[output] = value;
  ++op.live_outputs;
  ++stats_.values;
  return *value;
}

Value& Engine::expect(Op& op, std::uint16_t output, Bytes size, void* home) {
  return write(op, output, size, home, nullptr);
}

Value& Engine::view(Op& op, std::uint16_t output, Value& base, void* home) {
  Value& view = write(op, output, 0, home, nullptr);
  view.base = &base.storage();
  view.views = view.base->views;
  view.base->views = &view;
  return view;
}

void Engine::finish(Op& op, Nanos cost) {
  advance(cost);
  if (op.live_outputs == 0) return abandon(op);
  ++stats_.ops;
  op.cost = cost;
  Bytes made = 0;
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    if (op.outputs()[i]) made += op.outputs()[i]->size;
  }
  std::uint16_t history = 0, walked = 0;
  for (std::uint32_t i = 0; i < op.use_count; ++i) {
    const Value& value = *op.uses()[i].value;
    if (value.history <= history) continue;
    history = value.history, walked = value.walked;
  }
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    Value* value = op.outputs()[i];
    if (!value) continue;
    value->cost = op.together ? share(cost, *value, made) : cost;
    value->history = std::max<std::uint16_t>(history, history + 1), value->walked = walked;
    accessed(*value);
    own(*value);
    add_candidate(*value);
    neighbourhood_.added(*value);
  }
  neighbourhood_.refresh();
}

void Engine::finish_reload(Op& op) {
  ++stats_.ops;
  op.reload = 1;
  Value& value = *op.outputs()[0];
  value.cost = op.cost;
  if (value.home) own(value);
  add_candidate(value);
  follow_wants(value);
  neighbourhood_.added(value);
  neighbourhood_.refresh();
}

void Engine::reprice(Value& value, Nanos cost) {
  value.cost = value.producer->cost = cost;
  if (value.candidate != kNowhere) show_times(value);
}

void Engine::compute(Op& op, Nanos cost, Lock& lock) {
  ++stats_.ops;
  op.cost = cost;
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    Value& storage = op.outputs()[i]->storage();
    bool counted = false;  // Two outputs of one operator may be views of the same bytes.
    for (std::uint32_t j = 0; j < i; ++j) counted |= &op.outputs()[j]->storage() == &storage;
    if (!counted) {
      storage.cost += cost;
      if (storage.candidate != kNowhere) columns_.copy_times(storage);
    }
    if (op.outputs()[i] == &storage) neighbourhood_.expected(storage);
    for (std::uint32_t j = 0; j < op.use_count; ++j) {
      neighbourhood_.linked(storage, op.uses()[j].value->storage());
    }
    own(*op.outputs()[i]);
    --op.outputs()[i]->recomputes;  // The first run is none.
  }
  follow_wants_of_outputs(op);
  materialize(*op.outputs()[0], lock);
}

void Engine::abandon(Op& op) {
  ++stats_.ops;  // erase() takes it back: recipes count from finish() on.
  erase(op);
  while (!garbage_.empty()) {
    Value* value = garbage_.back();
    garbage_.pop_back();
    collect(*value);
  }
}

Value& Engine::constant(Bytes size, void* home, void* data) {
  ++stats_.values;
  return *new Value{.size = size, .home = home, .data = data};
}

// ---- Ways to lose content -----------------------------------------------------------------------

void Engine::unlock(Value& view) {
  Value& value = view.storage();
  if (--value.locks > 0) return;
  if (value.candidate != kNowhere) columns_.permit(value, ++order_);
  if (value.dropped_while_locked) {
    value.dropped_while_locked = false;
    let_go(value);
  }
  collect_or_banish(value);
}

void Engine::dropped(Value& value) {
  disown(value);
  value.home = nullptr;
  follow_wants(value);
  if (value.locks) {
    value.dropped_while_locked = true;
    return;
  }
  let_go(value);
  collect_or_banish(value);
}

// Paper, appendix C.5: a value that the program has dropped and that nothing missing was made from
// goes for good. What was made from it can't be recomputed then, so it becomes constant.
void Engine::collect_or_banish(Value& value) {
  if (policy_ != Policy::kBanish || value.home || value.constant()) return collect(value);
  std::vector<Value*> made;
  for (Use* use = value.uses; use; use = use->next) {
    for (std::uint32_t i = 0; i < use->op->output_count; ++i) {
      Value* output = use->op->outputs()[i];
      if (output && std::ranges::find(made, output) == made.end()) made.push_back(output);
    }
  }
  const auto resident = [](const Value* output) { return output->resident(); };
  if (!std::ranges::all_of(made, resident)) return collect(value);
  ++value.locks;
  settle_together(made);
  --value.locks;
  collect(value);
}

// Each record must outlive what the settling of the others collects.
void Engine::settle_together(const std::vector<Value*>& values) {
  std::vector<Held> held;
  for (Value* value : values) held.emplace_back(*this, *value);
  for (Value* value : values) {
    if (!value->constant()) settle(*value);
  }
}

// What only outside of memory has its like stays until its turn comes: to bring it there is work.
void Engine::let_go(Value& value) {
  if (policy_ != Policy::kEager || value.constant() || !value.resident()) return;
  if (value.movable()) return;
  if (!value.uses && records_ == KeepRecords::kNeeded) return;  // It goes with its record.
  executor_.release(value, Loss::kDropped);
  lose(value, Loss::kDropped);
}

void Engine::overwritten(Value& value) {
  disown(value);
  value.home = nullptr;
  lose(value, Loss::kDropped);
  collect(value);
}

void* Engine::reuse_buffer(Value& value) {
  void* data = value.data;
  lose(value, Loss::kDropped);
  return data;
}

void Engine::evict(Value& value) {
  executor_.release(value, Loss::kEvicted);
  lose(value, Loss::kEvicted);
  ++stats_.evictions;
}

void Engine::evict_or_move(Value& value) {
  if (!moves()) return evict(value);
  if (!value.uses && !value.home) return;  // It goes with the last lock.
  const Transfer& transfer = *columns_.transfer();
  if (!value.movable() && transfer.takes(value)) {
    const Nanos cost = transfer.cost(value.size);
    Op* reload = to_recompute(value, cost) >= cost ? executor_.reload_for(value) : nullptr;
    if (reload) move(value, *reload);
  }
  evict(value);
}

// A neighbourhood's cost is an estimate, and counts what was made from the value, too.
Nanos Engine::to_recompute(const Value& value, Nanos enough) {
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

void Engine::move(Value& value, Op& reload) {
  ++value.locks;  // It outlives its recipe.
  remove_candidate(value);
  disown(value);
  neighbourhood_.cut(value);
  unlink(value);
  value.producer = &reload;
  value.output = 0;
  reload.outputs()[0] = &value;
  reload.live_outputs = 1;
  collect(value);  // What only the recipe kept.
  --value.locks;
  finish_reload(reload);
}

// An output that other recipes read stays: each of them would have to wait for this one. To bring
// it back takes the whole run from now on.
void Engine::evict_together(Op& op) {
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    Value* value = op.outputs()[i];
    if (!value || value->candidate == kNowhere) continue;
    if (value->uses) {
      value->cost = op.cost;
      columns_.copy_times(*value);
    } else if (!value->locks) {
      evict(*value);
    }
  }
}

void Engine::lose(Value& value, Loss loss) {
  remove_candidate(value);
  value.data = nullptr;
  for (Value* view = value.views; view; view = view->views) view->data = nullptr;
  neighbourhood_.lost(value, loss);
  needs_after_loss(value);
  follow_wants(value);
}

void Engine::restore(Value& value, void* data) {
  value.data = data;
  ++value.recomputes;
  if (value.base) return;
  neighbourhood_.returned(value);
  add_candidate(value);
  needs_after_return(value);
  follow_wants(value);
}

void Engine::freeze(Value& value) {
  remove_candidate(value);
  disown(value);
  neighbourhood_.cut(value);
  if (std::exchange(value.unfilled, false)) --value.locks;
  executor_.make_ordinary(value);
  unlink(value);
  collect(value);
}

void Engine::settle(Value& value) {
  if (value.movable()) return;
  Op* reload = moves() ? executor_.reload_for(value) : nullptr;
  reload ? move(value, *reload) : freeze(value);
}

// ---- Lifetime -----------------------------------------------------------------------------------

void Engine::unlink(Value& value) {
  if (!value.resident()) needs_after_return(value);
  Op& op = *value.producer;
  value.producer = nullptr;
  value.history = 0;
  op.outputs()[value.output] = nullptr;
  if (--op.live_outputs == 0) erase(op);
}

void Engine::erase(Op& op) {
  for (std::uint32_t i = 0; i < op.use_count; ++i) {
    Use& use = op.uses()[i];
    if (!use.value) continue;
    *use.link = use.next;
    if (use.next) use.next->link = use.link;
    if (!use.value->uses) garbage_.push_back(use.value);
  }
  executor_.forget(op);
  ::operator delete(&op);
  --stats_.ops;
}

// A chain of recipes goes one record at a time through `garbage_`: its length must not be the depth
// of the C stack.
void Engine::collect(Value& first) {
  if (records_ == KeepRecords::kAll) return;
  Value* value = &first;
  while (true) {
    if (!value->needed()) {
      if (value->constant()) {
        executor_.forget(*value);
      } else {
        neighbourhood_.cut(*value);
        if (value->resident()) {
          remove_candidate(*value);
          executor_.release(*value, Loss::kDropped);
        }
        unlink(*value);
      }
      delete value;
      --stats_.values;
    }
    if (garbage_.empty()) return;
    value = garbage_.back();
    garbage_.pop_back();
  }
}

void Engine::own(Value& value) {
  value.owned = static_cast<std::int32_t>(owned_.size());
  owned_.push_back(&value);
}

void Engine::add_candidate(Value& value) {
  columns_.add(value, ++order_);
  if (tapes_.foretell()) columns_.set_need(value.candidate, need(value));
}

void Engine::remove_candidate(Value& value) {
  if (value.candidate == kNowhere) return;
  columns_.remove(value);
  file_orphan(value);
}

void Engine::disown(Value& value) {
  if (value.owned == kNowhere) return;
  Value* last = owned_.back();
  owned_[value.owned] = last;
  last->owned = value.owned;
  owned_.pop_back();
  value.owned = kNowhere;
}

// ---- Evicting -----------------------------------------------------------------------------------

bool Engine::evict_one(Shed shed) {
  Value* victim = orphan();
  if (!victim) victim = selector_.choose(score_clock(), stats_.clock);
  if (victim) evict_victim(*victim, shed);
  return victim;
}

bool Engine::evict_orphan() {
  Value* victim = orphan();
  if (victim) evict_victim(*victim, Shed::kBehindVictim);
  return victim;
}

void Engine::evict_victim(Value& victim, Shed shed) {
  if (sheds_ && shed == Shed::kBehindVictim && shed_behind(victim)) return;
  const bool together = victim.producer->together && !victim.uses;
  together ? evict_together(*victim.producer) : evict_or_move(victim);
}

// A recomputation that goes deep holds the other inputs of every operator on its way, for as long
// as it takes: with bad luck they fill the budget. Where nothing else is left they may go, and are
// brought back before their operator runs (materialize). What is given up on the way to what was
// given up can multiply: there is an end to it when each recipe has run kPatience times on average.
bool Engine::evict_waiting() {
  constexpr std::int64_t kPatience = 100;
  if (stats_.rematerializations - runs_before_ > kPatience * stats_.ops) return false;
  Value* victim = selector_.choose_waiting(score_clock());
  if (!victim) return false;
  evict(*victim);
  return true;
}

void Engine::evict_all() {
  for (std::size_t row = columns_.count(); row-- > 0;) {
    if (!columns_.value(row)->locks) evict(*columns_.value(row));
  }
}

void Engine::move_all() {
  std::vector<Value*> values;
  for (std::size_t row = 0; row < columns_.count(); ++row) {
    if (!columns_.value(row)->locks) values.push_back(columns_.value(row));
  }
  for (Value* value : values) lock(*value);
  for (Value* value : values) {
    evict_or_move(*value);
    unlock(*value);
  }
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.classes = neighbourhood_.classes();
  stats.evictable = columns_.bytes();
  stats.evaluations = selector_.evaluations();
  stats.accesses = stats.evaluations + neighbourhood_.accesses();
  return stats;
}

Bytes Engine::locked_bytes() const {
  Bytes sum = 0;
  for (std::size_t row = 0; row < columns_.count(); ++row) {
    const Value& value = *columns_.value(row);
    sum += value.locks ? value.size : 0;
  }
  return sum;
}

Bytes Engine::evictable_bytes() const {
  Bytes sum = 0;
  for (std::size_t row = 0; row < columns_.count(); ++row) {
    const Value& value = *columns_.value(row);
    sum += value.locks ? 0 : round_to_granule(value.size);
  }
  return sum;
}

void Engine::note_operator(Bytes bytes) {
  stats_.largest_operator = std::max(stats_.largest_operator, bytes);
}

}  // namespace dtr
