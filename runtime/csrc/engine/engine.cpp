#include "runtime/csrc/engine/engine.h"

#include <algorithm>
#include <new>
#include <utility>

#include "dtr_alloc/pool/csrc/pool.h"

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
  const std::size_t bytes =
      sizeof(Op) + inputs * sizeof(Use) + outputs * sizeof(Value*) + payload_bytes;
  Op* op = new (values_and_ops_.allocate(bytes))
      Op{.use_count = inputs, .output_count = outputs, .bytes = static_cast<std::uint32_t>(bytes)};
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
  Value* value =
      values_and_ops_.make(Value{.size = size, .producer = &op, .home = home, .data = data});
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
  History history;  // The longest of the inputs'.
  for (std::uint32_t i = 0; i < op.use_count; ++i) {
    const History& behind = op.uses()[i].value->history;
    if (behind.recipes > history.recipes) history = behind;
  }
  history.recipes = std::max<std::uint16_t>(history.recipes, history.recipes + 1);
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    Value* value = op.outputs()[i];
    if (!value) continue;
    value->cost = op.together ? share(cost, *value, made) : cost;
    value->history = history;
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
  orphans_.changed(value);
  neighbourhood_.added(value);
  neighbourhood_.refresh();
}

void Engine::reprice(Value& value, Nanos cost) {
  value.cost = value.producer->cost = cost;
  if (value.candidate != kNowhere) needs_.show(value);
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
  orphans_.linked(op);
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
  return *values_and_ops_.make(Value{.size = size, .home = home, .data = data});
}

// ---- Lifetime -----------------------------------------------------------------------------------

void Engine::unlink(Value& value) {
  if (!value.resident()) needs_.returned(value);
  needs_.pass_over(value);
  Op& op = *value.producer;
  value.producer = nullptr;
  value.history.recipes = 0;
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
  values_and_ops_.free(&op, op.bytes);
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
      needs_.forget(*value);
      values_and_ops_.free(value);
      --stats_.values;
    }
    if (garbage_.empty()) return;
    value = garbage_.back();
    garbage_.pop_back();
  }
}

void Engine::own(Value& value) {
  owned_.push_back(&value);
  value.owned = static_cast<std::int32_t>(owned_.size()) - 1;
}

void Engine::add_candidate(Value& value) {
  columns_.add(value, ++order_);
  needs_.show(value);
}

void Engine::remove_candidate(Value& value) {
  if (value.candidate == kNowhere) return;
  columns_.remove(value);
  stones_.lift(value);
  orphans_.file(value);
}

void Engine::disown(Value& value) {
  if (value.owned == kNowhere) return;
  Value* last = owned_.back();
  owned_[value.owned] = last;
  last->owned = value.owned;
  owned_.pop_back();
  value.owned = kNowhere;
  let_stones_go(value);
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.classes = neighbourhood_.classes();
  stats.evictable = columns_.bytes();
  stats.evaluations = eviction_.selector().evaluations();
  stats.accesses = stats.evaluations + neighbourhood_.accesses();
  return stats;
}

void Engine::note_operator(Bytes bytes) {
  stats_.largest_operator = std::max(stats_.largest_operator, bytes);
}

}  // namespace dtr
