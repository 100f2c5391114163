#include "runtime/csrc/simulator/live_simulation.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/csrc/engine/make_room.h"
#include "runtime/csrc/graph/owner.h"
#include "runtime/csrc/simulator/simulated_kernel.h"

namespace dtr {
namespace {

// With addresses to spare, pages make a hole where bytes are; without, blocks lie where they lie.
std::unique_ptr<Arena> arena_for(Bytes budget, bool remap) {
  if (!remap) return make_virtual_arena(round_to_granule(budget));
  Bytes addresses = usual_addresses(budget);
  return make_virtual_arena(addresses, host_page(addresses));
}

}  // namespace

// Memory of a run that nobody took is freed, last first.
struct LiveSimulation::Buffers {
  Buffers(LiveSimulation& simulation, std::size_t count) : simulation(simulation), data(count) {}
  ~Buffers() {
    for (std::size_t i = data.size(); i-- > 0;) {
      if (data[i]) simulation.free(data[i]);
    }
  }

  LiveSimulation& simulation;
  std::vector<void*> data;
};

LiveSimulation::LiveSimulation(const Schedule& schedule, const SimulationOptions& options)
    : schedule_(schedule),
      options_(options),
      pool_(Pool::create(arena_for(options.budget, options.remap), options.budget)),
      engine_(*this, options.heuristic, options.policy),
      values_(schedule.tensors()),
      constants_(schedule.tensors()),
      roots_(schedule.roots()),
      held_(schedule.tensors()),
      placement_(schedule_, options.placement) {
  engine_.eviction().shed_before_evicting();
  if (!options.link || options.leaving == Leaving::kDrop) return;
  link_ = options.link;
  engine_.move_by(*link_);
}

LiveSimulation::~LiveSimulation() {
  for (std::int64_t root = 0; root < schedule_.tensors(); ++root) let_go(root);
}

SimulationStatus LiveSimulation::run() {
  Lock lock(engine_.mutex());
  try {
    const auto steps = static_cast<std::int64_t>(schedule_.kind.size());
    for (std::int64_t i = 0; i < steps; ++i) {
      step(schedule_.kind[i], schedule_.operand[i], lock);
      if ((i + 1) * options_.layouts / steps > pictures_) picture();
    }
  } catch (const OutOfBudget&) {
    return SimulationStatus::kOutOfMemory;
  } catch (const Thrash&) {
    return SimulationStatus::kThrash;
  }
  return SimulationStatus::kOk;
}

void LiveSimulation::step(std::int64_t kind, std::int64_t operand, Lock& lock) {
  if (kind == Schedule::kCompute) return compute(operand, lock);
  if (kind == Schedule::kStep) return engine_.end_step();
  const std::int64_t root = roots_[operand];
  if (kind == Schedule::kGet) {
    ++held_[root];
  } else if (kind == Schedule::kRelease) {
    if (--held_[root] == 0) let_go(root);
  } else if (kind == Schedule::kFreeze) {
    keep(values_[root], lock, &Engine::settle);
  } else if (options_.pin_outputs) {
    keep(values_[root], lock, &Engine::freeze);
  }
}

void LiveSimulation::keep(Value* value, Lock& lock, void (Engine::*way)(Value&)) {
  if (!value || value->constant()) return;
  const Held held(engine_, *value);
  engine_.materialize(*value, lock);
  if (!value->constant()) (engine_.*way)(*value);
}

void LiveSimulation::let_go(std::int64_t root) {
  Value* value = std::exchange(values_[root], nullptr);
  if (!value) return;
  value->constant() ? constants_[root].release() : engine_.dropped(*value);
}

void LiveSimulation::add_constant(std::int64_t root, Bytes size, void* data) {
  Value& value = engine_.constant(size, data, data);
  values_[root] = &value;
  constants_[root] = Held(engine_, value);
}

void LiveSimulation::compute(std::int64_t number, Lock& lock) {
  const std::int64_t first = schedule_.op_results_begin[number];
  const std::int64_t end = schedule_.op_results_begin[number + 1];
  for (std::int64_t tensor = first; tensor < end; ++tensor) ++held_[roots_[tensor]];
  if (schedule_.op_constant[number]) return bring_in(number);
  OperatorCall call(engine_);
  std::vector<Value*> arguments;
  for (std::int64_t arg : schedule_.args(number)) {
    arguments.push_back(&value_of(arg));
    if (!arguments.back()->constant()) call.argument(*arguments.back());
  }
  counts_.base_compute += schedule_.cost(number);
  call.bring_back(lock);
  const std::vector<std::int64_t> results = stored_results(number);
  const auto tracked = [this](std::int64_t tensor) { return schedule_.tracked(tensor); };
  const bool recorded = !link_ || options_.leaving == Leaving::kBoth;
  if (recorded && std::ranges::any_of(results, tracked)) {
    call.begin(record(number, arguments, results.size()));
  }
  adopt_fresh(number, results, call.op());
  adopt_written(results, call);
  call.finish(cost_of(number));
}

// What comes from outside.
void LiveSimulation::bring_in(std::int64_t number) {
  for (std::int64_t tensor = schedule_.op_results_begin[number];
       tensor < schedule_.op_results_begin[number + 1]; ++tensor) {
    const Bytes size = schedule_.tensor_size[tensor];
    void* data = size > 0 ? allocate(size, placement_.of(number, TwoEndedPlacement::kFromOutside))
                          : nowhere();
    add_constant(tensor, size, data);
  }
}

// The results of an operator that are no views.
std::vector<std::int64_t> LiveSimulation::stored_results(std::int64_t number) const {
  std::vector<std::int64_t> results;
  for (std::int64_t tensor = schedule_.op_results_begin[number];
       tensor < schedule_.op_results_begin[number + 1]; ++tensor) {
    if (roots_[tensor] == tensor) results.push_back(tensor);
  }
  return results;
}

Op& LiveSimulation::record(std::int64_t number, const std::vector<Value*>& arguments,
                           std::size_t results) {
  std::vector<Value*> read;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!inlined(schedule_.args(number)[i])) read.push_back(arguments[i]);
  }
  Op& op = *engine_.begin(read.size(), results, sizeof(Payload));
  op.together = schedule_.op_together[number] != 0;
  new (op.payload()) Payload{number};
  for (std::size_t i = 0; i < read.size(); ++i) engine_.read(op, i, *read[i]);
  return op;
}

// The operator runs; its fresh results are values, or constants where `op` is null.
void LiveSimulation::adopt_fresh(std::int64_t number, const std::vector<std::int64_t>& results,
                                 Op* op) {
  Kernel kernel(*this, number);
  kernel.run(true);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::int64_t tensor = results[i];
    if (fresh(tensor)) adopt(tensor, op, i, schedule_.tensor_size[tensor], kernel.take(tensor));
  }
}

// A written storage is another value's now, and its program's reference too.
void LiveSimulation::adopt_written(const std::vector<std::int64_t>& results, OperatorCall& call) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::int64_t tensor = results[i];
    if (fresh(tensor)) continue;
    const std::int64_t before = roots_[schedule_.tensor_in_place[tensor]];
    Value* old = std::exchange(values_[before], nullptr);
    if (!old) continue;
    if (old->constant()) {
      values_[tensor] = old;
      constants_[tensor] = std::move(constants_[before]);
      continue;
    }
    const bool moved = old->movable();
    if (moved && old->uses) store(*old);  // Recipes read what was there.
    call.overwritten(*old);
    adopt(tensor, moved ? nullptr : call.op(), i, old->size, old->data);
  }
}

void LiveSimulation::adopt(std::int64_t tensor, Op* op, std::uint16_t output, Bytes size,
                           void* data) {
  if (op && schedule_.tracked(tensor)) {
    values_[tensor] = &engine_.write(*op, output, size, &values_[tensor], data);
    own(data, values_[tensor]);
  } else if (may_move(size)) {
    adopt_movable(tensor, size, data);
  } else {
    add_constant(tensor, size, data);
    own(data, nullptr);
  }
}

void LiveSimulation::picture() {
  for (auto [begin, end] : pool_->committed_runs()) {
    layouts_.insert(layouts_.end(), {pictures_, begin, end - begin, kBacked});
  }
  for (const Block& block : pool_->snapshot()) {
    if (block.free) continue;
    layouts_.insert(layouts_.end(),
                    {pictures_, block.offset, block.size, owner_of(block) ? kEvictable : kFixed});
  }
  ++pictures_;
}

// As a scope counts: arguments, and new results that are values.
Nanos LiveSimulation::cost_of(std::int64_t op) const {
  if (!options_.logical_clock) return schedule_.cost(op);
  Bytes touched = 0;
  for (std::int64_t arg : schedule_.args(op)) touched += schedule_.tensor_size[roots_[arg]];
  for (std::int64_t tensor = schedule_.op_results_begin[op];
       tensor < schedule_.op_results_begin[op + 1]; ++tensor) {
    if (fresh(tensor) && schedule_.tracked(tensor)) touched += schedule_.tensor_size[tensor];
  }
  return Nanos{touched};
}

Block* LiveSimulation::allocate(Bytes size, Place place) {
  const MovePrices prices = options_.prices.value_or(pool_->move_prices());
  const auto take = [&](Fit fit, bool = false) {
    Block* block = pool_->allocate(size, Fit::kCommitted, 0, place);
    if (block || fit == Fit::kCommitted) return block;
    const Nanos price = fit == Fit::kRemap ? pool_->move_price(size, prices) : 0ns;
    block = pool_->allocate(size, fit, 0, place);
    if (block) counts_.move_ns += price;
    return block;
  };
  if (Block* block = take(Fit::kCommitted)) return block;
  PoolStats before = pool_->stats();
  Bytes evicted = counts_.evicted_bytes;
  auto begin = std::chrono::steady_clock::now();
  Block* block = allocate_evicting(*pool_, engine_, prices, size, take, true);
  const Nanos passed = std::chrono::steady_clock::now() - begin;
  if (!block) throw OutOfBudget();
  ++counts_.misses;
  counts_.search_ns += passed;
  counts_.fragmentation += before.external_fragmentation;
  counts_.free_after +=
      static_cast<double>(pool_->budget() - pool_->live()) / static_cast<double>(pool_->budget());
  counts_.wasted_bytes += std::max(counts_.evicted_bytes - evicted - block->size, Bytes{0});
  return block;
}

void LiveSimulation::own(void* data, Value* value) {
  if (data != nowhere()) set_owner(*static_cast<Block*>(data), value);
}

void LiveSimulation::free(void* data) {
  if (data != nowhere()) pool_->free(static_cast<Block*>(data));
}

// The value that `op` reads at the first place where its program gave it `tensor`. Inlined constants
// have no place.
Value& LiveSimulation::written(Op& op, std::int64_t tensor) const {
  std::int64_t number = static_cast<Payload*>(op.payload())->op;
  std::uint32_t use = 0;
  for (std::int64_t arg : schedule_.args(number)) {
    if (arg == tensor) break;
    use += !inlined(arg);
  }
  return *op.uses()[use].value;
}

// As live/storages/replayer.cpp does. A value that is written and that nobody else wants is taken
// as the buffer, else copied; what is there already is made again, and freed last first.
void LiveSimulation::recompute(Op& op, Lock&) {
  if (op.reload) return reload(op);
  const std::int64_t number = static_cast<Payload*>(op.payload())->op;
  const std::vector<std::int64_t> results = stored_results(number);
  Buffers made(*this, results.size());
  lay_out_written(op, results, made.data);
  for (std::int64_t i = schedule_.op_events_begin[number];
       i < schedule_.op_events_begin[number + 1]; ++i) {
    if (schedule_.event_kind[i] != Schedule::kCopied) continue;
    made.data.push_back(allocate(schedule_.event_value[i]));
  }
  {
    Kernel kernel(*this, number);
    kernel.run(false);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (fresh(results[i])) made.data[i] = kernel.take(results[i]);
    }
  }
  restore_outputs(op, results, made.data);
  counts_.remat_compute += schedule_.cost(number);
  ++counts_.rematerializations;
  check_thrash();
}

void LiveSimulation::check_thrash() const {
  const Nanos more = counts_.remat_compute + counts_.waited_ns;
  if (options_.remat_limit != 0ns && more > options_.remat_limit) throw Thrash();
}

void LiveSimulation::restore_outputs(Op& op, const std::vector<std::int64_t>& results,
                                     std::vector<void*>& made) {
  --counts_.collateral;  // One of them was asked for.
  for (std::size_t i = 0; i < results.size(); ++i) {
    Value* output = op.outputs()[i];
    if (!output || output->resident()) continue;
    own(made[i], output);
    engine_.restore(*output, std::exchange(made[i], nullptr));
    ++counts_.collateral;
    log(results[i], kComputed);
  }
}

// The memory of the results that are written in place.
void LiveSimulation::lay_out_written(Op& op, const std::vector<std::int64_t>& results,
                                     std::vector<void*>& made) {
  std::vector<std::pair<std::size_t, Bytes>> copies;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (fresh(results[i])) continue;
    const std::int64_t before = schedule_.tensor_in_place[results[i]];
    if (inlined(before)) {  // The recipe has a copy.
      if (const Bytes size = schedule_.tensor_size[results[i]]) copies.emplace_back(i, size);
      continue;
    }
    Value& value = written(op, before);
    const auto reads = [&](const Use& use) { return use.value == &value; };
    const auto places = std::count_if(op.uses(), op.uses() + op.use_count, reads);
    if (takes_buffer(value, static_cast<std::int32_t>(places))) {
      made[i] = engine_.reuse_buffer(value);
      own(made[i], nullptr);
    } else {
      copies.emplace_back(i, value.size);
    }
  }
  for (auto [i, size] : copies) made[i] = allocate(size);
}

void LiveSimulation::release(Value& value, Loss loss) {
  const bool evicted = loss == Loss::kEvicted;
  if (evicted && value.movable()) store(value);
  own(value.data, nullptr);
  free(value.data);
  if (evicted) counts_.evicted_bytes += value.size;
  ++counts_.evictions;
  counts_.eager_evictions += !evicted;
  log(tensor_of(value), evicted ? kEvicted : kDropped);
}

std::int64_t LiveSimulation::tensor_of(const Value& value) const {
  if (value.movable()) return away(value).tensor;
  const std::int64_t number = static_cast<Payload*>(value.producer->payload())->op;
  std::int64_t tensor = schedule_.op_results_begin[number];
  for (std::int64_t before = value.output; roots_[tensor] != tensor || before-- > 0;) ++tensor;
  return tensor;
}

void LiveSimulation::log(std::int64_t tensor, std::int64_t event) {
  if (options_.log_events) events_.insert(events_.end(), {tensor, event});
}

void LiveSimulation::make_ordinary(Value& value) {
  own(value.data, nullptr);
  if (value.home)
    constants_[static_cast<Value**>(value.home) - values_.data()] = Held(engine_, value);
}

void LiveSimulation::forget(Value& value) { free(value.data); }

std::pair<Bytes, Bytes> LiveSimulation::free_neighbours(const Value& value) const {
  return pool_->free_neighbours(static_cast<Block*>(value.data));
}

SimulationCounts LiveSimulation::counts() const {
  SimulationCounts counts = counts_;
  counts.usage = pool_->live();
  counts.peak_bytes = pool_->stats().peak;
  counts.evaluations = engine_.stats().evaluations;
  counts.accesses = engine_.stats().accesses;
  return counts;
}

void LiveSimulation::check() const {
  pool_->check();
  engine_.check();
}

}  // namespace dtr
