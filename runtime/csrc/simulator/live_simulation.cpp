#include "runtime/csrc/simulator/live_simulation.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/csrc/engine/make_room.h"

namespace dtr {
namespace {

struct OutOfBudget : std::exception {};
struct Thrash : std::exception {};

// With addresses to spare, pages make a hole where bytes are; without, blocks lie where they lie.
std::unique_ptr<Arena> arena_for(Bytes budget, bool remap) {
  if (!remap) return make_virtual_arena(round_to_granule(budget));
  Bytes addresses = scope_addresses(budget);
  return make_virtual_arena(addresses, host_page(addresses));
}

}  // namespace

// One run of an operator's kernel: what it allocates and frees, in order.
struct LiveSimulation::Kernel {
  Kernel(LiveSimulation& simulation, std::int64_t op) : simulation(simulation), op(op) {}
  ~Kernel() {  // What nobody took: temporaries of a run that failed.
    for (Block* block : blocks) {
      if (block) simulation.free(block);
    }
  }

  // `releases`: storages of the program die meanwhile, the first time.
  void run(bool releases) {
    const Schedule& schedule = simulation.schedule_;
    simulation.learn(op);
    std::int64_t first = schedule.op_events_begin[op], end = schedule.op_events_begin[op + 1];
    for (std::int64_t i = first; i < end; ++i) {
      std::int64_t value = schedule.event_value[i];
      switch (schedule.event_kind[i]) {
        case Schedule::kAllocated:
          blocks.push_back(simulation.allocate(value, simulation.place_of(op, owner())));
          break;
        case Schedule::kFreed:
          simulation.free(std::exchange(blocks.at(value), nullptr));
          break;
        case Schedule::kReleased:
          if (releases) simulation.let_go(simulation.roots_[value]);
          break;
        case Schedule::kCopied:
          break;  // Before it runs again.
      }
    }
    if (first == end) {
      for (std::int64_t tensor = schedule.op_results_begin[op];
           tensor < schedule.op_results_begin[op + 1]; ++tensor) {
        if (simulation.fresh(tensor) && schedule.tensor_size[tensor] > 0) {
          blocks.push_back(
              simulation.allocate(schedule.tensor_size[tensor], simulation.place_of(op, tensor)));
        }
      }
    }
  }

  // The result whose block is the next one, or -1 where that is a temporary.
  std::int64_t owner() const {
    const Schedule& schedule = simulation.schedule_;
    for (std::int64_t tensor = schedule.op_results_begin[op];
         tensor < schedule.op_results_begin[op + 1]; ++tensor) {
      if (schedule.tensor_block[tensor] == static_cast<std::int64_t>(blocks.size())) return tensor;
    }
    return -1;
  }

  // The block of a fresh result, or what stands for none.
  void* take(std::int64_t tensor) {
    const Schedule& schedule = simulation.schedule_;
    if (schedule.tensor_size[tensor] == 0) return simulation.nowhere();
    std::int64_t place = schedule.tensor_block[tensor];
    return std::exchange(blocks.at(place < 0 ? next++ : place), nullptr);
  }

  LiveSimulation& simulation;
  const std::int64_t op;
  std::vector<Block*> blocks;
  std::size_t next = 0;
};

LiveSimulation::LiveSimulation(const Schedule& schedule, const SimulationOptions& options)
    : schedule_(schedule),
      options_(options),
      pool_(Pool::create(arena_for(options.budget, options.remap), options.budget)),
      engine_(*this, options.heuristic, options.policy),
      values_(schedule.tensors()),
      roots_(schedule.roots()),
      held_(schedule.tensors()) {
  engine_.shed_before_evicting();
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
  if (kind == Schedule::kStep) return;
  std::int64_t root = roots_[operand];
  Value* value = values_[root];
  if (kind == Schedule::kGet) {
    ++held_[root];
  } else if (kind == Schedule::kRelease) {
    if (--held_[root] == 0) let_go(root);
  } else if (value && !value->constant()) {
    if (kind == Schedule::kPin && !options_.pin_outputs) return;
    bring_back(*value, lock);  // What must stay is no longer the engine's, as after a commit.
    if (!value->constant()) engine_.freeze(*value);
  }
}

void LiveSimulation::let_go(std::int64_t root) {
  Value* value = std::exchange(values_[root], nullptr);
  if (!value) return;
  value->constant() ? engine_.unlock(*value) : engine_.dropped(*value);
}

// The program's hold on it is a lock.
Value& LiveSimulation::constant(Bytes size, void* data) {
  Value& value = engine_.constant(size, data, data);
  engine_.lock(value);
  return value;
}

void LiveSimulation::bring_back(Value& value, Lock& lock) {
  engine_.lock(value);
  try {
    engine_.materialize(value, lock);
  } catch (...) {
    engine_.unlock(value);
    throw;
  }
  engine_.unlock(value);
}

// Session::execute, step by step.
void LiveSimulation::compute(std::int64_t number, Lock& lock) {
  std::int64_t first = schedule_.op_results_begin[number];
  std::int64_t end = schedule_.op_results_begin[number + 1];
  for (std::int64_t tensor = first; tensor < end; ++tensor) ++held_[roots_[tensor]];
  if (schedule_.op_constant[number]) {
    for (std::int64_t tensor = first; tensor < end; ++tensor) {
      Bytes size = schedule_.tensor_size[tensor];
      values_[tensor] =
          &constant(size, size > 0 ? allocate(size, place_of(number, -2)) : nowhere());
    }
    return;
  }
  std::vector<Value*> arguments, tracked;
  for (std::int64_t arg : schedule_.args(number)) arguments.push_back(&value_of(arg));
  for (Value* value : arguments) {
    if (value->constant()) continue;
    tracked.push_back(value);
    engine_.lock(*value);
    engine_.touch(*value);
  }
  const auto unlock = [&] {
    for (Value* value : tracked) engine_.unlock(*value);
  };
  std::vector<std::int64_t> results;
  bool recorded = false;
  for (std::int64_t tensor = first; tensor < end; ++tensor) {
    if (roots_[tensor] != tensor) continue;
    results.push_back(tensor);
    recorded |= schedule_.tracked(tensor);
  }
  Nanos cost = schedule_.op_cost[number];
  counts_.base += cost;
  Op* op = nullptr;
  try {
    for (Value* value : tracked) {
      if (!value->resident()) bring_back(*value, lock);
    }
    if (recorded) {
      std::vector<Value*> read;
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        if (!inlined(schedule_.args(number)[i])) read.push_back(arguments[i]);
      }
      op = Engine::begin(read.size(), results.size(), sizeof(Payload));
      new (op->payload()) Payload{number};
      for (std::size_t i = 0; i < read.size(); ++i) engine_.read(*op, i, *read[i]);
    }
    Kernel kernel(*this, number);
    kernel.run(true);
    for (std::size_t i = 0; i < results.size(); ++i) {
      std::int64_t tensor = results[i];
      if (!fresh(tensor)) continue;
      Bytes size = schedule_.tensor_size[tensor];
      void* data = kernel.take(tensor);
      bool track = op && schedule_.tracked(tensor);
      values_[tensor] =
          track ? &engine_.write(*op, i, size, &values_[tensor], data) : &constant(size, data);
      own(data, track ? values_[tensor] : nullptr);
    }
  } catch (...) {
    if (op) engine_.abandon(*op);
    unlock();
    throw;
  }
  // A written storage is another value's now, and its program's reference too.
  std::vector<Value*> superseded;
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::int64_t tensor = results[i];
    if (fresh(tensor)) continue;
    std::int64_t before = roots_[schedule_.tensor_in_place[tensor]];
    Value* old = std::exchange(values_[before], nullptr);
    if (!old) continue;
    if (old->constant()) {
      values_[tensor] = old;
      continue;
    }
    superseded.push_back(old);
    bool track = op && schedule_.tracked(tensor);
    values_[tensor] = track ? &engine_.write(*op, i, old->size, &values_[tensor], old->data)
                            : &constant(old->size, old->data);
    own(old->data, track ? values_[tensor] : nullptr);
  }
  op ? engine_.finish(*op, cost_of(number)) : engine_.advance(cost_of(number));
  for (Value* old : superseded) engine_.superseded(*old);
  unlock();
}

void LiveSimulation::picture() {
  for (auto [begin, end] : pool_->committed_runs()) {
    layouts_.insert(layouts_.end(), {pictures_, begin, end - begin, kBacked});
  }
  for (const Block& block : pool_->snapshot()) {
    if (block.free) continue;
    layouts_.insert(layouts_.end(),
                    {pictures_, block.offset, block.size, block.owner ? kEvictable : kFixed});
  }
  ++pictures_;
}

namespace {
double price(const Schedule& schedule, std::int64_t op) {
  Bytes made = 0;
  for (std::int64_t tensor = schedule.op_results_begin[op];
       tensor < schedule.op_results_begin[op + 1]; ++tensor) {
    made += schedule.tensor_size[tensor];
  }
  return static_cast<double>(schedule.op_cost[op]) / static_cast<double>(std::max(made, Bytes{1}));
}
}  // namespace

// A step of a fiftieth towards each operator leaves as many above as below.
void LiveSimulation::learn(std::int64_t op) {
  const double now = price(schedule_, op);
  if (median_ == 0) median_ = now;
  median_ = std::clamp(now, median_ / 1.02, median_ * 1.02);
}

Nanos LiveSimulation::cost_of(std::int64_t op) const {
  if (!options_.logical_clock) return schedule_.op_cost[op];
  Bytes touched = 0;
  for (std::int64_t arg : schedule_.args(op)) touched += schedule_.tensor_size[roots_[arg]];
  for (std::int64_t tensor = schedule_.op_results_begin[op];
       tensor < schedule_.op_results_begin[op + 1]; ++tensor) {
    touched += schedule_.tensor_size[tensor];
  }
  return touched;
}

// Of a result; -1 for a temporary, -2 for what comes from outside.
Place LiveSimulation::place_of(std::int64_t op, std::int64_t tensor) {
  if (options_.placement == Placement::kBestFit) return Place::kBestFit;
  const bool fixed = tensor == -2 || (tensor >= 0 && !schedule_.tracked(tensor));
  return fixed || (tensor >= 0 && price(schedule_, op) > median_) ? Place::kHigh : Place::kLow;
}

Block* LiveSimulation::allocate(Bytes size, Place place) {
  const MovePrices prices = options_.prices.value_or(pool_->arena().move_prices());
  const auto take = [&](Fit fit) {
    Nanos price = fit == Fit::kRemap ? pool_->move_price(size, prices) : 0;
    Block* block = pool_->allocate(size, fit, 0, place);
    if (block) counts_.move_ns += price;
    return block;
  };
  if (Block* block = take(Fit::kCommitted)) return block;
  PoolStats before = pool_->stats();
  Bytes evicted = counts_.evicted_bytes;
  auto begin = std::chrono::steady_clock::now();
  Block* block = allocate_evicting(*pool_, engine_, prices, size, take, true);
  auto passed = std::chrono::steady_clock::now() - begin;
  if (!block) throw OutOfBudget();
  ++counts_.misses;
  counts_.search_ns += std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count();
  counts_.fragmentation += before.external_fragmentation;
  counts_.free_after +=
      static_cast<double>(pool_->budget() - pool_->live()) / static_cast<double>(pool_->budget());
  counts_.wasted_bytes += std::max(counts_.evicted_bytes - evicted - block->size, Bytes{0});
  return block;
}

void LiveSimulation::own(void* data, Value* value) {
  if (data != nowhere()) static_cast<Block*>(data)->owner = value;
}

void LiveSimulation::free(void* data) {
  if (data != nowhere()) pool_->free(static_cast<Block*>(data));
}

// The value that `op` reads at the first place where its program gave it `tensor`. Constants that
// were copied into the recipe have no place.
Value& LiveSimulation::written(Op& op, std::int64_t tensor) const {
  std::int64_t number = static_cast<Payload*>(op.payload())->op;
  std::uint32_t use = 0;
  for (std::int64_t arg : schedule_.args(number)) {
    if (arg == tensor) break;
    use += !inlined(arg);
  }
  return *op.uses()[use].value;
}

// Session::run and Session::replay. A value that is written and that nobody else wants is taken as
// the buffer, else copied; what is there already is made again, and freed last first.
void LiveSimulation::run(Op& op, Lock&) {
  std::int64_t number = static_cast<Payload*>(op.payload())->op;
  Nanos cost = schedule_.op_cost[number];
  std::vector<std::int64_t> results;
  for (std::int64_t tensor = schedule_.op_results_begin[number];
       tensor < schedule_.op_results_begin[number + 1]; ++tensor) {
    if (roots_[tensor] == tensor) results.push_back(tensor);
  }
  std::vector<void*> made(results.size(), nullptr);
  const auto give_up = [&] {
    for (std::size_t i = made.size(); i-- > 0;) {
      if (made[i]) free(std::exchange(made[i], nullptr));
    }
  };
  try {
    std::vector<std::pair<std::size_t, Bytes>> copies;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (fresh(results[i])) continue;
      Value& value = written(op, schedule_.tensor_in_place[results[i]]);
      std::int32_t places = 0;
      for (std::uint32_t j = 0; j < op.use_count; ++j) places += op.uses()[j].value == &value;
      if (!value.constant() && !value.home && value.locks == places) {
        made[i] = engine_.steal(value);
        own(made[i], nullptr);
      } else {
        copies.emplace_back(i, value.size);
      }
    }
    for (auto [i, size] : copies) made[i] = allocate(size);
    for (std::int64_t i = schedule_.op_events_begin[number];
         i < schedule_.op_events_begin[number + 1]; ++i) {
      if (schedule_.event_kind[i] != Schedule::kCopied) continue;
      made.push_back(allocate(schedule_.event_value[i]));
    }
    Kernel kernel(*this, number);
    kernel.run(false);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (fresh(results[i])) made[i] = kernel.take(results[i]);
    }
  } catch (...) {
    give_up();
    throw;
  }
  std::int64_t back = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    Value* output = op.outputs()[i];
    if (!output || output->resident()) continue;
    own(made[i], output);
    engine_.restore(*output, std::exchange(made[i], nullptr));
    ++back;
    if (options_.log_events) events_.insert(events_.end(), {results[i], Simulation::kComputed});
  }
  give_up();
  counts_.remat += cost;
  ++counts_.remats;
  counts_.collateral += back - 1;
  if (options_.remat_limit && counts_.remat > options_.remat_limit) throw Thrash();
}

void LiveSimulation::release(Value& value, Loss loss) {
  own(value.data, nullptr);
  free(value.data);
  if (loss == Loss::kEvicted) counts_.evicted_bytes += value.size;
  ++counts_.evictions;
  counts_.eager += loss == Loss::kDropped;
  if (!options_.log_events) return;
  std::int64_t number = static_cast<Payload*>(value.producer->payload())->op;
  std::int64_t tensor = schedule_.op_results_begin[number];
  for (std::int64_t before = value.output; roots_[tensor] != tensor || before-- > 0;) ++tensor;
  events_.insert(events_.end(),
                 {tensor, loss == Loss::kDropped ? Simulation::kDropped : Simulation::kEvicted});
}

void LiveSimulation::settle(Value& value) {
  own(value.data, nullptr);
  if (value.home) engine_.lock(value);
}

void LiveSimulation::forget(Value& value) { free(value.data); }

std::pair<Bytes, Bytes> LiveSimulation::free_neighbours(const Value& value) const {
  return pool_->free_neighbours(static_cast<Block*>(value.data));
}

SimulationCounts LiveSimulation::counts() const {
  SimulationCounts counts = counts_;
  counts.usage = pool_->live();
  counts.peak = pool_->stats().peak;
  counts.evaluations = engine_.stats().evaluations;
  counts.accesses = engine_.stats().accesses;
  return counts;
}

void LiveSimulation::check() const {
  pool_->check();
  engine_.check();
}

}  // namespace dtr
