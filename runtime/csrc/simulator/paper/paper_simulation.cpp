#include "runtime/csrc/simulator/paper/paper_simulation.h"

#include <algorithm>
#include <new>
#include <set>
#include <stdexcept>

#include "runtime/csrc/engine/rules.h"

namespace dtr {

PaperSimulation::PaperSimulation(const Schedule& schedule, const SimulationOptions& options)
    : schedule_(schedule),
      options_(options),
      engine_(*this, options.heuristic, options.policy, options.records),
      values_(schedule.tensors()),
      roots_(schedule.roots()),
      held_(schedule.tensors()),
      pinned_(schedule.tensors()),
      held_constants_(schedule.tensors()) {
  if (options.records == KeepRecords::kNeeded && !options.free_views) {
    throw std::invalid_argument("views that are recomputed need every record kept");
  }
}

PaperSimulation::~PaperSimulation() {
  if (keeps_all()) {
    pinned_.clear();
    engine_.discard(ops_, constants_);
    return;
  }
  for (std::int64_t tensor = 0; tensor < schedule_.tensors(); ++tensor) {
    if (held_[tensor] == 0 || !values_[tensor]) continue;  // The run may have ended before it was.
    pinned_[tensor].release();
    let_go(tensor);
  }
}

SimulationStatus PaperSimulation::run() {
  Lock lock(engine_.mutex());
  try {
    for (std::size_t i = 0; i < schedule_.kind.size(); ++i) {
      step(schedule_.kind[i], schedule_.operand[i], lock);
    }
  } catch (const OutOfBudget&) {
    return SimulationStatus::kOutOfMemory;
  } catch (const Thrash&) {
    return SimulationStatus::kThrash;
  }
  return SimulationStatus::kOk;
}

void PaperSimulation::step(std::int64_t kind, std::int64_t operand, Lock& lock) {
  if (kind == Schedule::kCompute) return compute(operand, lock);
  if (kind == Schedule::kFreeze || kind == Schedule::kStep) return;
  const std::int64_t root = roots_[operand];
  if (kind == Schedule::kGet) {
    ++held_[root];
  } else if (kind == Schedule::kPin) {
    pin(*values_[options_.free_views ? root : operand], root, lock);
  } else if (--held_[root] == 0 && !pinned(root)) {
    let_go(root);
  }
}

// The engine keeps constants that recipes read; pinned are those that nothing may let go.
void PaperSimulation::pin(Value& value, std::int64_t root, Lock& lock) {
  if (!options_.pin_outputs) return;
  engine_.materialize(value, lock);
  const bool kept = value.constant() && !keeps_all();
  if (!pinned(root) && !kept) pinned_[root] = Held(engine_, value);
}

// The program's last reference to `tensor` is gone. The paper's simulator never frees constants.
void PaperSimulation::let_go(std::int64_t tensor) {
  Value& value = *values_[tensor];
  if (!value.constant()) {
    engine_.dropped(value);
  } else if (!keeps_all()) {
    held_constants_[tensor].release();
  }
}

void PaperSimulation::compute(std::int64_t number, Lock& lock) {
  const std::int64_t first = schedule_.op_results_begin[number];
  const std::int64_t end = schedule_.op_results_begin[number + 1];
  std::vector<std::int64_t> results;
  for (std::int64_t tensor = first; tensor < end; ++tensor) {
    ++held_[roots_[tensor]];
    if (!options_.free_views || roots_[tensor] == tensor) results.push_back(tensor);
  }
  if (schedule_.op_constant[number]) {
    for (std::int64_t tensor = first; tensor < end; ++tensor) add_constant(tensor);
  } else if (results.empty()) {
    counts_.base_compute += schedule_.cost(number);
    engine_.advance(schedule_.cost(number));
  } else {
    engine_.compute(record(number, results), schedule_.cost(number), lock);
  }
}

// The outputs are known before the operator runs: they begin missing.
Op& PaperSimulation::record(std::int64_t number, const std::vector<std::int64_t>& results) {
  const auto args = schedule_.args(number);
  Op& op = *engine_.begin(args.size(), results.size(), sizeof(Payload));
  new (op.payload()) Payload{number, schedule_.op_results_begin[number]};
  if (keeps_all()) ops_.push_back(&op);
  for (std::size_t i = 0; i < args.size(); ++i) {
    engine_.read(op, i, *values_[options_.free_views ? roots_[args[i]] : args[i]]);
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::int64_t tensor = results[i], root = roots_[tensor];
    void* home = &values_[tensor];
    values_[tensor] = root == tensor ? &engine_.expect(op, i, schedule_.tensor_size[tensor], home)
                                     : &engine_.view(op, i, *values_[root], home);
  }
  return op;
}

void PaperSimulation::add_constant(std::int64_t tensor) {
  Bytes size = schedule_.tensor_size[tensor];
  make_room(size);
  Value& value = engine_.constant(size, this, this);
  values_[tensor] = &value;
  if (keeps_all()) {
    constants_.push_back(&value);
  } else {
    held_constants_[tensor] = Held(engine_, value);
  }
}

void PaperSimulation::make_room(Bytes size) {
  while (counts_.usage + size > options_.budget) {
    if (!engine_.eviction().evict_one()) throw OutOfBudget();
  }
  counts_.usage += size;
  counts_.peak_bytes = std::max(counts_.peak_bytes, counts_.usage);
}

// Outputs that are still there, or that nothing needs any more, are made all the same and dropped,
// as kernels do.
void PaperSimulation::recompute(Op& op, Lock&) {
  std::int64_t number = static_cast<Payload*>(op.payload())->op;
  const Value* asked = op.outputs()[0];
  bool again = !asked || asked->recomputes >= 0;
  Bytes total = 0;
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    total += schedule_.tensor_size[tensor_of(op, i)];
  }
  make_room(total);
  std::int64_t back = 0;
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    Value* output = op.outputs()[i];
    if (!output || output->resident()) {
      counts_.usage -= schedule_.tensor_size[tensor_of(op, i)];
      continue;
    }
    engine_.restore(*output, this);  // Anything but null: it is there.
    ++back;
    log(*output, kComputed);
  }
  (again ? counts_.remat_compute : counts_.base_compute) += schedule_.cost(number);
  counts_.rematerializations += again;
  counts_.collateral += again ? back - 1 : 0;
  if (options_.remat_limit != 0ns && counts_.remat_compute > options_.remat_limit) throw Thrash();
}

void PaperSimulation::release(Value& value, Loss loss) {
  counts_.usage -= value.size;
  ++counts_.evictions;
  counts_.eager_evictions += loss == Loss::kDropped;
  log(value, loss == Loss::kDropped ? kDropped : kEvicted);
}

// What was banished around it made it constant.
void PaperSimulation::make_ordinary(Value& value) {
  if (!value.home) return;
  const auto tensor = static_cast<Value**>(value.home) - values_.data();
  held_constants_[tensor] = Held(engine_, value);
}

void PaperSimulation::forget(Value& value) { counts_.usage -= value.size; }

// The outputs of an operator are not always consecutive tensors: free views have no value.
std::int64_t PaperSimulation::tensor_of(const Op& op, std::int64_t output) const {
  std::int64_t tensor = static_cast<const Payload*>(const_cast<Op&>(op).payload())->first;
  if (!options_.free_views) return tensor + output;
  for (;; ++tensor) {
    if (roots_[tensor] == tensor && output-- == 0) return tensor;
  }
}

void PaperSimulation::log(const Value& value, SimulationEvent event) {
  if (!options_.log_events) return;
  events_.push_back(tensor_of(*value.producer, value.output));
  events_.push_back(event);
}

SimulationCounts PaperSimulation::counts() const {
  SimulationCounts counts = counts_;
  counts.evaluations = engine_.stats().evaluations;
  counts.accesses = engine_.stats().accesses;
  return counts;
}

PaperSimulation::Baseline PaperSimulation::baseline(const Schedule& schedule) {
  Baseline sum{};
  std::vector<std::int64_t> roots = schedule.roots(), held(schedule.tensors());
  Bytes usage = 0;
  for (std::size_t i = 0; i < schedule.kind.size(); ++i) {
    std::int64_t operand = schedule.operand[i];
    if (schedule.kind[i] == Schedule::kCompute) {
      sum.cost += schedule.cost(operand);
      Bytes together = 0;
      std::set<std::int64_t> read;  // Two views of a storage are one.
      for (std::int64_t arg : schedule.args(operand)) {
        if (read.insert(roots[arg]).second) together += schedule.tensor_size[roots[arg]];
      }
      for (std::int64_t tensor = schedule.op_results_begin[operand];
           tensor < schedule.op_results_begin[operand + 1]; ++tensor) {
        usage += schedule.tensor_size[tensor];
        together += schedule.tensor_size[tensor];
        if (schedule.op_constant[operand]) sum.constants += schedule.tensor_size[tensor];
        ++held[roots[tensor]];
      }
      sum.largest_operator = std::max(sum.largest_operator, together);
      sum.peak = std::max(sum.peak, usage);
    } else if (schedule.kind[i] == Schedule::kGet) {
      ++held[roots[operand]];
    } else if (schedule.kind[i] == Schedule::kRelease && --held[roots[operand]] == 0) {
      usage -= schedule.tensor_size[roots[operand]];
    }
  }
  return sum;
}

}  // namespace dtr
