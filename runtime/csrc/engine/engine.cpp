#include "runtime/csrc/engine/engine.h"

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <unordered_set>
#include <utility>

#include "dtr_alloc/csrc/pool.h"

namespace dtr {

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
  std::uint16_t history = 0, walked = 0;
  for (std::uint32_t i = 0; i < op.use_count; ++i) {
    const Value& value = *op.uses()[i].value;
    if (value.history <= history) continue;
    history = value.history, walked = value.walked;
  }
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    Value* value = op.outputs()[i];
    if (!value) continue;
    value->cost = cost;
    value->history = std::max<std::uint16_t>(history, history + 1), value->walked = walked;
    touch(*value);
    own(*value);
    add_candidate(*value);
    neighbourhood_.added(*value);
  }
  neighbourhood_.refresh();
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
      if (output && !output->resident()) return collect(value);
      if (output && std::find(made.begin(), made.end(), output) == made.end()) {
        made.push_back(output);
      }
    }
  }
  // Each record must outlive what the freezing of the others collects.
  made.push_back(&value);
  for (Value* one : made) ++one->locks;
  for (Value* one : made) {
    if (one != &value && !one->constant()) freeze(*one);
  }
  for (Value* one : made) {
    --one->locks;
    collect(*one);
  }
}

void Engine::let_go(Value& value) {
  if (policy_ != Policy::kEager || value.constant() || !value.resident()) return;
  if (!value.uses && records_ == Records::kNeeded) return;  // It goes with its record.
  executor_.release(value, Loss::kDropped);
  lose(value, Loss::kDropped);
}

void Engine::superseded(Value& value) {
  disown(value);
  value.home = nullptr;
  lose(value, Loss::kDropped);
  collect(value);
}

void* Engine::steal(Value& value) {
  void* data = value.data;
  lose(value, Loss::kDropped);
  return data;
}

void Engine::evict(Value& value) {
  executor_.release(value, Loss::kEvicted);
  lose(value, Loss::kEvicted);
  ++stats_.evictions;
}

void Engine::lose(Value& value, Loss loss) {
  remove_candidate(value);
  value.data = nullptr;
  for (Value* view = value.views; view; view = view->views) view->data = nullptr;
  neighbourhood_.lost(value, loss);
}

void Engine::restore(Value& value, void* data) {
  value.data = data;
  ++value.recomputes;
  if (value.base) return;
  neighbourhood_.returned(value);
  add_candidate(value);
}

void Engine::freeze(Value& value) {
  remove_candidate(value);
  disown(value);
  neighbourhood_.cut(value);
  executor_.settle(value);
  unlink(value);
  collect(value);
}

// ---- Lifetime -----------------------------------------------------------------------------------

void Engine::unlink(Value& value) {
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
  if (records_ == Records::kAll) return;
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
  stats_.evictable += value.size;
}

void Engine::remove_candidate(Value& value) {
  if (value.candidate == kNowhere) return;
  columns_.remove(value);
  stats_.evictable -= value.size;
}

void Engine::disown(Value& value) {
  if (value.owned == kNowhere) return;
  Value* last = owned_.back();
  owned_[value.owned] = last;
  last->owned = value.owned;
  owned_.pop_back();
  value.owned = kNowhere;
}

void Engine::score_on(std::unique_ptr<DeviceScorer> device) {
  device_scorer_ = std::move(device);
  columns_.lie_in([this](std::size_t bytes) { return device_scorer_->memory(bytes); });
}

// ---- Choosing -----------------------------------------------------------------------------------

// The columns that change with other values' fates are brought up to date when they are read.
void Engine::refresh(std::size_t row) {
  columns_.set_neighbourhood(row, neighbourhood_.cost(row));
  if (heuristic_.fragmentation != 0) look_beside(row);
}

// MegEngine looks for the right hole where the bytes of a value end, but blocks end at a granule,
// so for all other sizes it sees none.
bool Engine::sees_right(const Value& value) const {
  return heuristic_.neighbourhood != NeighbourhoodKind::kMegEngine ||
         value.size == round_to_granule(value.size);
}

void Engine::look_beside(std::size_t row) {
  const Value& value = *columns_.value(row);
  std::pair<Bytes, Bytes> free = executor_.free_neighbours(value);
  columns_.set_free(row, {free.first, sees_right(value) ? free.second : 0});
}

// Most values have nothing free beside them, so it is the holes that are gone through.
void Engine::look_beside_all() {
  const Pool* pool = executor_.pool_of_values();
  if (!pool) return;
  pool->list_holes(holes_);
  columns_.clear_free();
  for (const Pool::Beside& hole : holes_) {
    const auto* left = static_cast<const Value*>(hole.left);
    const auto* right = static_cast<const Value*>(hole.right);
    if (left && left->candidate != kNowhere && sees_right(*left)) {
      columns_.set_free_right(left->candidate, hole.free);
    }
    if (right && right->candidate != kNowhere) columns_.set_free_left(right->candidate, hole.free);
  }
}

// Whoever looks at all candidates chooses best, and with little memory one choice in thirty can be
// the one that makes a program recompute for ever. It costs n scores. So all are looked at while
// scoring has taken less than a hundredth of the operators' time. Beyond that, sampling looks at
// sqrt(n) candidates, but at no fewer than kSampleAtLeast, and passes over tensors below a
// hundredth of the mean size (paper, appendix E.2): eviction stays cheap where operators are short
// and candidates are thousands.
Value* Engine::choose() {
  constexpr std::size_t kSampleAtLeast = 32;
  constexpr Nanos kScore = 25, kShare = 100;
  ColumnsView columns = columns_.view();
  std::size_t n = columns.count;
  const auto draw = [&] {
    random_ = random_ * 6364136223846793005 + 1442695040888963407;  // Knuth's MMIX generator.
    return (random_ >> 32) * n >> 32;
  };
  if (heuristic_.selection == Selection::kRandom) {
    for (std::size_t i = 0; i < 2 * n; ++i) {  // Few are locked.
      if (std::size_t row = draw(); columns.evictable[row]) return columns_.value(row);
    }
  }
  bool affordable =
      (stats_.evaluations + static_cast<std::int64_t>(n)) * kScore <= stats_.clock / kShare;
  if (heuristic_.selection == Selection::kSample && n > kSampleAtLeast && !affordable) {
    Bytes small = stats_.evictable / static_cast<Bytes>(n) / 100;
    std::size_t draws = std::max(kSampleAtLeast, static_cast<std::size_t>(std::sqrt(n)));
    Least least = scorer_.least();
    for (std::size_t i = 0; i < draws; ++i) {
      std::size_t row = draw();
      if (columns.size[row] < small || !columns.evictable[row]) continue;
      refresh(row);
      ++stats_.evaluations;
      least.consider(static_cast<std::int64_t>(row), columns.order[row],
                     scorer_.terms(columns, row, stats_.clock));
    }
    if (least.row() != kNoRow) return columns_.value(least.row());
  }
  neighbourhood_.fill();
  if (heuristic_.fragmentation != 0) look_beside_all();
  std::optional<Scorer::Choice> by_device;
  if (device_scorer_) by_device = device_scorer_->choose(scorer_, columns, stats_.clock);
  Scorer::Choice choice = by_device ? *by_device : scorer_.choose(columns, stats_.clock);
  stats_.evaluations += static_cast<std::int64_t>(columns_.evictable()) + choice.evaluations;
  return choice.row == kNoRow ? nullptr : columns_.value(choice.row);
}

bool Engine::evict_one() {
  Value* victim = choose();
  if (!victim) return false;
  if (!sheds_ || !shed_behind(*victim)) evict(*victim);
  return true;
}

// A recomputation that goes deep holds the other inputs of every operator on its way, for as long
// as it takes: with bad luck they fill the budget. Where nothing else is left they may go, and are
// brought back before their operator runs (materialize). What is given up on the way to what was
// given up can multiply: there is an end to it when each recipe has run kPatience times on average.
bool Engine::evict_waiting() {
  constexpr std::int64_t kPatience = 100;
  if (stats_.rematerializations - runs_before_ > kPatience * stats_.ops) return false;
  ColumnsView columns = columns_.view();
  Least least = scorer_.least();
  for (std::size_t row = 0; row < columns.count; ++row) {
    const Value& value = *columns_.value(row);
    if (value.locks == 0 || value.locks != value.waiting) continue;
    refresh(row);
    ++stats_.evaluations;
    least.consider(static_cast<std::int64_t>(row), columns.order[row],
                   scorer_.terms(columns, row, stats_.clock));
  }
  if (least.row() == kNoRow) return false;
  evict(*columns_.value(least.row()));
  return true;
}

void Engine::evict_all() {
  for (std::size_t row = columns_.count(); row-- > 0;) {
    if (!columns_.value(row)->locks) evict(*columns_.value(row));
  }
}

Bytes Engine::locked_bytes() const {
  Bytes sum = 0;
  for (std::size_t row = 0; row < columns_.count(); ++row) {
    const Value& value = *columns_.value(row);
    sum += value.locks ? value.size : 0;
  }
  return sum;
}

void Engine::note_operator(Bytes bytes) {
  stats_.largest_operator = std::max(stats_.largest_operator, bytes);
}

// ---- Rematerialization --------------------------------------------------------------------------

// An operator on the stack of a rematerialization, and which of its missing inputs is next. Once
// all have been there, it holds on to them: so each gives its inputs up once at most, and the whole
// comes to an end.
struct Engine::Pending {
  Op* op;
  Value* wanted;
  std::size_t first_missing, next;
  bool holds = false;
};

void Engine::unlock_inputs(Op& op) {
  if (policy_ != Policy::kBanish) {
    for (std::uint32_t i = 0; i < op.use_count; ++i) unlock(*op.uses()[i].value);
    return;
  }
  std::vector<Value*> inputs;  // To banish one of them may erase the operator.
  for (std::uint32_t i = 0; i < op.use_count; ++i) inputs.push_back(op.uses()[i].value);
  for (Value* input : inputs) unlock(*input);
}

void Engine::materialize(Value& target, Lock& lock) {
  std::vector<Pending> pending;
  std::vector<Value*> missing;  // Inputs of all that is pending; the last one's come last.
  // Resident inputs are locked before the first missing one is recomputed, which must not evict
  // them while there is anything else; the missing ones as they come back.
  const auto wait_with = [this](Value& input) {
    this->lock(input);
    ++input.storage().waiting;
  };
  const auto hold = [](Pending& top) {
    if (std::exchange(top.holds, true)) return;
    for (std::uint32_t i = 0; i < top.op->use_count; ++i) {
      --top.op->uses()[i].value->storage().waiting;
    }
  };
  const auto push = [&](Value& value) {
    Op& op = *value.producer;
    for (std::uint32_t i = 0; i < op.use_count; ++i) touch(*op.uses()[i].value);
    pending.push_back({&op, &value, missing.size(), missing.size()});
    for (std::uint32_t i = 0; i < op.use_count; ++i) {
      Value& input = *op.uses()[i].value;
      input.resident() ? wait_with(input) : missing.push_back(&input);
    }
  };
  if (target.resident()) return;
  runs_before_ = stats_.rematerializations;
  push(target);
  try {
    while (!pending.empty()) {
      Pending& top = pending.back();
      if (top.next < missing.size()) {
        Value& input = *missing[top.next];
        if (input.resident()) {
          wait_with(input);
          ++top.next;
        } else {
          push(input);
        }
        continue;
      }
      // Another thread, or a shared subexpression, may have been here meanwhile.
      Op& op = *top.op;
      Value& wanted = *top.wanted;
      bool lacks = false;
      for (std::uint32_t i = 0; i < op.output_count; ++i) {
        lacks |= op.outputs()[i] && !op.outputs()[i]->resident();
      }
      hold(top);
      if (lacks) {
        Value* given_up = nullptr;
        for (std::uint32_t i = 0; i < op.use_count && !given_up; ++i) {
          if (!op.uses()[i].value->resident()) given_up = op.uses()[i].value;
        }
        if (given_up) {
          push(*given_up);
          continue;
        }
        run(op, wanted, lock);
      }
      missing.resize(top.first_missing);
      pending.pop_back();
      unlock_inputs(op);
    }
  } catch (...) {
    for (; !pending.empty(); pending.pop_back()) {
      // What is still missing was not locked.
      for (; missing.size() > pending.back().next; missing.pop_back()) wait_with(*missing.back());
      hold(pending.back());
      missing.resize(pending.back().first_missing);
      unlock_inputs(*pending.back().op);
    }
    throw;
  }
}

void Engine::run(Op& op, Value& wanted, Lock& lock) {
  bool first = wanted.recomputes < 0;
  try {
    executor_.run(op, lock);
  } catch (...) {
    neighbourhood_.refresh();  // Some outputs may be back.
    throw;
  }
  if (Value& storage = wanted.storage(); storage.candidate != kNowhere) {
    columns_.stamp(storage, ++order_);
  }
  neighbourhood_.refresh();
  stats_.clock += op.cost;
  (first ? stats_.base_cost : stats_.remat_cost) += op.cost;
  stats_.rematerializations += !first;
  for (std::uint32_t i = 0; first && i < op.output_count; ++i) touch(*op.outputs()[i]);
}

void Engine::settle(Value& value, Lock& lock) {
  this->lock(value);
  try {
    materialize(value, lock);
  } catch (...) {
    unlock(value);
    throw;
  }
  if (value.producer && value.home) freeze(value);  // Else the program dropped it meanwhile.
  unlock(value);
}

std::vector<Value*> Engine::held_on(const Value& constant) const {
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

void Engine::retire(Value& constant, Lock& lock) {
  std::vector<Value*> live = held_on(constant);
  for (Value* value : live) this->lock(*value);
  try {
    for (; !live.empty(); live.pop_back()) {
      settle(*live.back(), lock);
      unlock(*live.back());
    }
  } catch (...) {
    for (Value* value : live) unlock(*value);
    throw;
  }
}

void Engine::commit(Lock& lock, const std::function<bool()>& spill) {
  for (std::size_t i = owned_.size(); i-- > 0;) {
    if (i < owned_.size() && owned_[i]->resident()) freeze(*owned_[i]);
  }
  while (!owned_.empty()) {
    try {
      settle(*owned_.back(), lock);
    } catch (const std::exception&) {
      if (!spill()) throw;
    }
  }
}

void Engine::discard(const std::vector<Op*>& ops, const std::vector<Value*>& constants) {
  for (Op* op : ops) {
    for (std::uint32_t i = 0; i < op->output_count; ++i) {
      Value* value = op->outputs()[i];
      neighbourhood_.discard(*value);
      delete value;
    }
    ::operator delete(op);
  }
  for (Value* value : constants) delete value;
  columns_.clear();
  owned_.clear();
  stats_.values = stats_.ops = stats_.evictable = 0;
}

// ---- Histories ----------------------------------------------------------------------------------

Engine::Resting Engine::resting_on(const Value& constant, Bytes enough) const {
  Resting found;
  std::unordered_set<const Value*> seen{&constant};
  std::vector<const Value*> frontier{&constant};
  while (!frontier.empty() && found.bytes < enough) {
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
// `visit(constant)` for each that only recipes hold.
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
      if (input.constant()) {
        if (executor_.kept_for_recipes(input)) history.kept += input.size, visit(input);
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
bool Engine::outweighed(Value& value, int shortest) {
  constexpr int kLongestEstimate = std::numeric_limits<std::uint16_t>::max() / 2;
  if (value.constant() || value.history < shortest) return false;
  if (value.history < std::min<Bytes>(value.size / kRecord, value.walked * 3 / 2)) return false;
  const History history = walk(value, value.size, [](Value&) {});
  const int estimate = std::min(history.recipes + history.behind, kLongestEstimate);
  value.history = value.walked = static_cast<std::uint16_t>(estimate);
  return history.recipes >= kLongestHistory || history.weight() >= value.size;
}

bool Engine::shed(Value& constant) {
  const Resting resting = resting_on(constant, constant.size + 1);
  if (!resting.idle || resting.bytes > constant.size) return false;
  std::vector<Value*> live = held_on(constant);
  for (Value* value : live) ++value->locks;
  for (Value* value : live) {
    if (!value->constant()) freeze(*value);
  }
  for (Value* value : live) {
    --value->locks;
    collect(*value);
  }
  return true;
}

bool Engine::shed_behind(Value& value) {
  std::vector<Value*> kept;
  walk(value, std::numeric_limits<Bytes>::max(),
       [&](Value& constant) { kept.push_back(&constant); });
  for (Value* constant : kept) ++constant->locks;
  bool any = false;
  for (Value* constant : kept) any |= shed(*constant);
  for (Value* constant : kept) {
    --constant->locks;
    collect(*constant);
  }
  return any;
}

// ---- Consistency --------------------------------------------------------------------------------

void Engine::check() const {
  const auto insist = [](bool truth, const char* sentence) {
    if (!truth) throw std::logic_error(std::string("engine: ") + sentence);
  };
  Bytes evictable = 0;
  std::unordered_set<const Value*> values;
  std::unordered_set<Op*> ops;
  std::vector<const Value*> frontier;
  const auto reach = [&](const Value* value) {
    if (value && values.insert(value).second) frontier.push_back(value);
  };
  columns_.check();
  for (std::size_t row = 0; row < columns_.count(); ++row) {
    const Value* value = columns_.value(row);
    insist(value->resident() && value->producer, "a candidate is resident and has a recipe");
    evictable += value->size;
    reach(value);
  }
  insist(evictable == stats_.evictable, "the evictable bytes are the sum over the candidates");
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    const Value* value = owned_[i];
    insist(value->owned == static_cast<std::int32_t>(i), "an owned value knows its place");
    insist(value->home && value->producer, "an owned value has a storage and a recipe");
    reach(value);
  }
  while (!frontier.empty()) {
    const Value* value = frontier.back();
    frontier.pop_back();
    insist(value->needed() || value->resident(), "no value outlives its last reader");
    if (value->producer) {
      neighbourhood_.check(*value);
      insist(value->resident() == (value->candidate != kNowhere),
             "exactly the resident values are candidates");
      insist(value->producer->outputs()[value->output] == value, "a producer knows its output");
      ops.insert(value->producer);
      for (std::uint32_t i = 0; i < value->producer->use_count; ++i) {
        reach(value->producer->uses()[i].value);
      }
    } else {
      insist(value->resident(), "a constant is resident");
    }
    for (const Use* use = value->uses; use; use = use->next) {
      insist(use->value == value && *use->link == use, "a list of readers is sound");
      ops.insert(use->op);
      for (std::uint32_t i = 0; i < use->op->output_count; ++i) reach(use->op->outputs()[i]);
    }
  }
  for (Op* op : ops) {
    std::uint16_t live = 0;
    for (std::uint32_t i = 0; i < op->output_count; ++i) live += op->outputs()[i] != nullptr;
    insist(live == op->live_outputs && live > 0, "an operator lives as long as its outputs");
  }
  insist(static_cast<std::int64_t>(values.size()) == stats_.values, "every value is reachable");
  insist(static_cast<std::int64_t>(ops.size()) == stats_.ops, "every recipe is reachable");
}

}  // namespace dtr
