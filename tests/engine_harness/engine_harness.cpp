#include "tests/engine_harness/engine_harness.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include "runtime/csrc/engine/make_room.h"
#include "runtime/csrc/engine/settle.h"
#include "runtime/csrc/graph/owner.h"

namespace dtr {

struct EngineHarness::Content {
  Block* block;
  std::uint64_t number;
  int references = 1;
  Holder* reader = nullptr;  // The holder whose constant Value reads this.
};

struct EngineHarness::Holder {
  Id id;
  Value* value = nullptr;      // Tracked, or a constant that recipes read.
  Content* content = nullptr;  // Of an ordinary storage; null while tracked.
};

struct EngineHarness::Payload {
  std::uint64_t name;
};

namespace {

void count_down(std::int64_t& to_failure) {
  if (to_failure > 0 && --to_failure == 0) throw std::bad_alloc();
}

}  // namespace

EngineHarness::EngineHarness(Bytes budget, const Heuristic& heuristic, const Options& options)
    : pool_(Pool::create(make_virtual_arena(round_to_granule(budget) + options.spare, options.page),
                         budget)),
      engine_(*this, heuristic),
      page_price_(options.page_price) {
  if (options.image.empty()) return;
  engine_.eviction().selector().score_on(
      std::make_unique<DeviceScorer>(0, options.image, heuristic, ScorerPlace::kDevice));
}

EngineHarness::~EngineHarness() {
  Lock lock(engine_.mutex());
  while (!holders_.empty()) {
    Id id = holders_.begin()->first;
    lock.unlock();
    drop(id);
    lock.lock();
  }
}

std::uint64_t EngineHarness::content_of(std::uint64_t name,
                                        const std::vector<std::uint64_t>& inputs,
                                        std::uint64_t result) {
  std::uint64_t number = name * 0x9e3779b97f4a7c15 + result;
  for (std::uint64_t input : inputs) number = (number ^ input) * 0x100000001b3 + 1;
  return number;
}

EngineHarness::Holder& EngineHarness::holder(Id id) const { return *holders_.at(id); }

EngineHarness::Content* EngineHarness::make(Bytes size, std::uint64_t number) {
  auto content = std::make_unique<Content>(Content{nullptr, number});
  count_down(allocations_to_failure_);
  content->block = allocate(size);
  if (!content->block) throw std::bad_alloc();
  return content.release();
}

Block* EngineHarness::allocate(Bytes size) {
  const auto take = [&](Fit fit, bool = false) { return pool_->allocate(size, fit); };
  if (page_price_) {
    const MovePrices prices{0ns, *page_price_};
    return allocate_evicting(*pool_, engine_, prices, size, take, true);
  }
  while (true) {
    if (Block* block = take(Fit::kRemap)) return block;
    if (!engine_.eviction().evict_one()) return nullptr;
  }
}

void EngineHarness::unreference(Content* content) {
  if (--content->references) return;
  pool_->free(content->block);
  delete content;
}

Value& EngineHarness::value_of(Holder& holder) {
  if (!holder.value) {
    holder.value = &engine_.constant(holder.content->block->size, holder.content, holder.content);
    holder.content->reader = &holder;
    ++holder.content->references;
  }
  return *holder.value;
}

void EngineHarness::require(Value& value, Lock& lock) {
  if (!value.resident()) engine_.materialize(value, lock);
}

EngineHarness::Id EngineHarness::constant(Bytes size, std::uint64_t content) {
  Lock lock(engine_.mutex());
  Content* made = make(size, content);
  auto holder = std::make_unique<Holder>(Holder{next_, nullptr, made});
  holders_.emplace(next_, std::move(holder));
  return next_++;
}

// The results of a call that are new: they go again where the call fails.
struct EngineHarness::Fresh {
  explicit Fresh(EngineHarness& harness) : harness(harness) {}
  ~Fresh() {
    for (auto [id, content] : made) {
      harness.holders_.erase(id);
      harness.unreference(content);
    }
  }

  void add(Bytes size) {
    made.reserve(made.size() + 1);
    made.emplace_back(kNone, harness.make(size, 0));
  }
  void hold() {  // Once all are there: a call that fails uses up no id.
    ids.reserve(made.size());
    for (auto& [id, content] : made) {
      auto holder = std::make_unique<Holder>(Holder{harness.next_, nullptr, content});
      harness.holders_.emplace(harness.next_, std::move(holder));
      ids.push_back(id = harness.next_++);
    }
  }
  void track(std::size_t i, Op& op) {
    auto [id, content] = made[i];
    Holder& held = harness.holder(id);
    held.value = &harness.engine_.write(op, i, content->block->size, &held, content);
    held.content = nullptr;
    set_owner(*content->block, held.value);
  }
  void fill(std::size_t i, std::uint64_t number) { made[i].second->number = number; }
  std::vector<Id> keep() {
    made.clear();
    return std::move(ids);
  }

  static constexpr Id kNone = -1;
  EngineHarness& harness;
  std::vector<std::pair<Id, Content*>> made;
  std::vector<Id> ids;
};

std::vector<EngineHarness::Id> EngineHarness::call(std::uint64_t name, Nanos cost,
                                                   const std::vector<Id>& inputs,
                                                   const std::vector<std::uint32_t>& written,
                                                   const std::vector<Bytes>& results,
                                                   const std::vector<std::uint32_t>& dropped) {
  Lock lock(engine_.mutex());
  std::unordered_set<Id> storages;
  for (std::uint32_t position : written) {
    if (!storages.insert(inputs.at(position)).second) {
      throw std::invalid_argument("a call writes the same storage twice");
    }
  }
  Fresh fresh(*this);
  OperatorCall call(engine_);
  std::vector<Value*> arguments;
  for (Id id : inputs) {
    arguments.push_back(&value_of(holder(id)));
    call.argument(*arguments.back());
  }
  call.bring_back(lock);
  // Constants are changed where they lie, so whoever reads the old content must not need it again.
  const auto constant = [](const Value* value) { return value->constant(); };
  std::vector<Value*> targets;
  for (std::uint32_t position : written) targets.push_back(arguments[position]);
  for (Value* target : targets) {
    if (target->constant()) retire(engine_, *target, lock);
  }
  for (Bytes size : results) fresh.add(size);
  fresh.hold();

  std::vector<std::uint64_t> contents;
  for (Value* value : arguments) contents.push_back(static_cast<Content*>(value->data)->number);
  const bool makes = !results.empty() || !targets.empty();
  const bool record = makes && std::ranges::none_of(targets, constant);
  const std::uint16_t outputs = results.size() + targets.size();
  Op& op = *engine_.begin(record ? inputs.size() : 0, outputs, sizeof(Payload));
  call.begin(op);
  new (op.payload()) Payload{name};
  for (std::size_t i = 0; record && i < inputs.size(); ++i) engine_.read(op, i, *arguments[i]);
  for (std::size_t i = 0; record && i < results.size(); ++i) fresh.track(i, op);
  for (std::size_t i = 0; i < results.size(); ++i) fresh.fill(i, content_of(name, contents, i));
  for (std::size_t i = 0; i < targets.size(); ++i) {
    auto* content = static_cast<Content*>(targets[i]->data);
    const std::size_t output = results.size() + i;
    if (!targets[i]->constant()) overwrite(*targets[i], record ? &op : nullptr, output, call);
    content->number = content_of(name, contents, output);
  }
  for (std::uint32_t position : dropped) let_go(inputs.at(position));
  call.finish(cost);
  return fresh.keep();
}

// The storage of `old` holds another value now: an output of `op`, or an ordinary content.
void EngineHarness::overwrite(Value& old, Op* op, std::uint16_t output, OperatorCall& call) {
  auto* home = static_cast<Holder*>(old.home);
  auto* content = static_cast<Content*>(old.data);
  Value* next = op ? &engine_.write(*op, output, old.size, home, content) : nullptr;
  home->value = next;
  if (!next) home->content = content;
  set_owner(*content->block, next);
  call.overwritten(old);
}

void EngineHarness::drop(Id id) {
  Lock lock(engine_.mutex());
  let_go(id);
}

void EngineHarness::let_go(Id id) {
  Holder& held = holder(id);
  if (held.content) {
    if (held.content->reader == &held) held.content->reader = nullptr;
    unreference(held.content);
  } else {
    engine_.dropped(*held.value);
  }
  holders_.erase(id);
}

std::uint64_t EngineHarness::read(Id id) {
  Lock lock(engine_.mutex());
  Holder& held = holder(id);
  if (held.content) return held.content->number;
  Value& value = *held.value;
  engine_.lock(value);
  engine_.touch(value);
  try {
    require(value, lock);
  } catch (...) {
    engine_.unlock(value);
    throw;
  }
  std::uint64_t number = static_cast<Content*>(value.data)->number;
  engine_.unlock(value);
  return number;
}

bool EngineHarness::evict(Id id) {
  Lock lock(engine_.mutex());
  Holder& held = holder(id);
  if (held.content || !held.value->resident()) return false;
  engine_.evict(*held.value);
  return true;
}

void EngineHarness::freeze(Id id) {
  read(id);
  Lock lock(engine_.mutex());
  Holder& held = holder(id);
  if (!held.content) engine_.freeze(*held.value);
}

void EngineHarness::cut_history(Id id) {
  Lock lock(engine_.mutex());
  Holder& held = holder(id);
  if (!held.content && engine_.histories().outweighed(*held.value)) engine_.freeze(*held.value);
}

void EngineHarness::commit() {
  Lock lock(engine_.mutex());
  dtr::commit(engine_, lock, [] { return false; });
}

bool EngineHarness::resident(Id id) const {
  const Holder& held = holder(id);
  return held.content || held.value->resident();
}

Bytes EngineHarness::offset(Id id) const {
  const Holder& held = holder(id);
  const auto* content = held.content ? held.content : static_cast<Content*>(held.value->data);
  return content->block->offset;
}

std::vector<Bytes> EngineHarness::window(Bytes bytes) {
  Lock lock(engine_.mutex());
  std::vector<Bytes> offsets;
  for (const Value* value : engine_.eviction().cheapest_window(*pool_, bytes).values) {
    offsets.push_back(static_cast<Content*>(value->data)->block->offset);
  }
  return offsets;
}

Nanos EngineHarness::time_window(Bytes bytes, int times) {
  Lock lock(engine_.mutex());
  Nanos least = Nanos::max();
  for (int i = 0; i < times; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    engine_.eviction().cheapest_window(*pool_, bytes);
    const Nanos passed = std::chrono::steady_clock::now() - begin;
    least = std::min(least, passed);
  }
  return least;
}

std::vector<EngineHarness::Id> EngineHarness::take_evicted() { return std::exchange(evicted_, {}); }

void EngineHarness::check() const {
  pool_->check();
  engine_.check(true);
}

std::vector<std::uint64_t> EngineHarness::results_of(Op& op) const {
  const Payload& payload = *static_cast<const Payload*>(op.payload());
  std::vector<std::uint64_t> inputs, results;
  for (std::uint32_t i = 0; i < op.use_count; ++i) {
    inputs.push_back(static_cast<Content*>(op.uses()[i].value->data)->number);
  }
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    results.push_back(content_of(payload.name, inputs, i));
  }
  return results;
}

// What is missing is settled first: making room for one result may evict another, which then stays
// gone.
void EngineHarness::recompute(Op& op, Lock&) {
  count_down(replays_to_failure_);
  std::vector<std::uint64_t> numbers = results_of(op);
  std::vector<std::pair<Value*, Content*>> made;
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    Value* value = op.outputs()[i];
    if (value && !value->resident()) made.emplace_back(value, nullptr);
  }
  try {
    for (auto& [value, content] : made) content = make(value->size, numbers[value->output]);
  } catch (...) {
    for (auto& [value, content] : made) {
      if (content) unreference(content);
    }
    throw;
  }
  for (auto& [value, content] : made) {
    set_owner(*content->block, value);
    engine_.restore(*value, content);
  }
}

void EngineHarness::release(Value& value, Loss) {
  auto* home = static_cast<Holder*>(value.home);
  evicted_.push_back(home ? home->id : -1);
  unreference(static_cast<Content*>(value.data));
}

void EngineHarness::make_ordinary(Value& value) {
  auto* home = static_cast<Holder*>(value.home);
  auto* content = static_cast<Content*>(value.data);
  home->content = content;  // One reference for the holder, one for the constant.
  content->reader = home;
  set_owner(*content->block, nullptr);
  ++content->references;
  value.home = content;
}

std::pair<Bytes, Bytes> EngineHarness::free_neighbours(const Value& value) const {
  return pool_->free_neighbours(static_cast<Content*>(value.data)->block);
}

void EngineHarness::forget(Value& value) {
  auto* content = static_cast<Content*>(value.data);
  if (content->reader && content->reader->value == &value) content->reader->value = nullptr;
  unreference(content);
}

void EngineHarness::forget(Op& op) { static_cast<Payload*>(op.payload())->~Payload(); }

}  // namespace dtr
