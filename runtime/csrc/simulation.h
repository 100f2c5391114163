// A recorded run, replayed without tensors: what would the engine have done under this budget?
//
// It is the engine of the live runtime on an executor that only counts. Memory is a number, as in
// the paper's simulator (mode bytes: fragmentation does not exist, and an operator needs room for
// all its outputs at once), or blocks of a pool of addresses (mode pool: outputs are allocated one
// by one, as kernels do). Where the live runtime's rules differ from the paper's there is an option
// in SimulationOptions, with the reason. Source: the paper, section 4.2 and appendix C.6.

#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "dtr_alloc/csrc/pool.h"
#include "runtime/csrc/engine.h"

namespace dtr {

// A trace as flat columns (runtime/trace.py makes it). Tensors are numbered in the order of the
// operators that make them; the results of one operator are consecutive.
struct Schedule {
  enum Kind : std::int64_t { kCompute, kGet, kPin, kRelease };

  std::span<const std::int64_t> tensor_size;   // Bytes; 0 for a view.
  std::span<const std::int64_t> tensor_alias;  // The tensor whose bytes it shares, or -1.
  std::span<const std::int64_t> op_cost, op_constant;
  std::span<const std::int64_t> op_args_begin, op_args;  // Compressed rows.
  std::span<const std::int64_t> op_results_begin;
  std::span<const std::int64_t> kind, operand;  // Instructions: an operator's or a tensor's number.

  std::int64_t ops() const { return static_cast<std::int64_t>(op_cost.size()); }
  std::int64_t tensors() const { return static_cast<std::int64_t>(tensor_size.size()); }
};

struct SimulationOptions {
  Bytes budget = 0;
  bool pool = false;
  Heuristic heuristic;
  Policy policy = Policy::kEager;
  // The paper's simulator recomputes views as operators of their own, and keeps every record. Live,
  // views share their storage and need no operator, and a record that nothing can ask for goes.
  bool free_views = false;
  Records records = Records::kAll;
  Nanos remat_limit = 0;      // Thrash: more recomputation than this. 0 for no limit.
  bool log_events = false;    // Keep what was evicted and computed, in order.
};

struct SimulationCounts {
  Bytes usage = 0, peak = 0;
  Nanos base = 0, remat = 0;
  std::int64_t evictions = 0;  // Of them `eager` as the program let go.
  std::int64_t eager = 0;
  std::int64_t remats = 0, collateral = 0;  // Operators run again; other outputs they brought back.
  std::int64_t evaluations = 0, accesses = 0;
};

enum class SimulationStatus { kOk, kOutOfMemory, kThrash };

class Simulation final : public Executor {
 public:
  Simulation(const Schedule& schedule, const SimulationOptions& options);
  ~Simulation() override;

  SimulationStatus run();
  SimulationCounts counts() const;
  // Pairs: tensor, and 1 where it was evicted to make room, 2 where the program let it go, 0 where
  // it was computed. Filled where log_events is set.
  const std::vector<std::int64_t>& events() const { return events_; }
  void check() const { engine_.check(); }

  // The bytes and time of the whole run without a budget: what is released goes at once, constants
  // too. `largest_operator` is the most bytes that one operator reads and makes.
  struct Baseline {
    Bytes peak, constants, largest_operator;
    Nanos cost;
  };
  static Baseline baseline(const Schedule& schedule);

  // Executor.
  void run(Op& op, Lock& lock) override;
  void release(Value& value) override;
  void settle(Value& value) override;
  Bytes free_neighbours(const Value& value) const override;
  void forget(Value& value) override;
  void forget(Op&) override {}

 private:
  struct Payload {
    std::int64_t op, first;  // Its number and its first result's.
  };
  struct OutOfBudget : std::exception {};
  struct Thrash : std::exception {};
  enum Event : std::int64_t { kComputed, kEvicted, kDropped };

  void step(std::int64_t kind, std::int64_t operand, Lock& lock);
  void compute(std::int64_t op, Lock& lock);
  void add_constant(std::int64_t tensor);
  void* allocate(Bytes size);
  void free(Bytes size, void* data);
  void make_room(Bytes size);
  bool keeps_all() const { return options_.records == Records::kAll; }
  void let_go(std::int64_t tensor);
  std::int64_t tensor_of(const Op& op, std::int64_t output) const;
  void log(const Value& value, Event event);

  const Schedule schedule_;
  const SimulationOptions options_;
  Pool::Handle pool_;
  Engine engine_;
  std::vector<Value*> values_;       // By tensor; by root where views are free.
  std::vector<std::int64_t> roots_;  // By tensor: the one whose bytes it shares.
  std::vector<std::int64_t> held_;   // By tensor, at roots: references of the program.
  std::vector<char> pinned_;         // By tensor, at roots.
  std::vector<Op*> ops_;  // These two where every record is kept.
  std::vector<Value*> constants_;
  SimulationCounts counts_;
  bool letting_go_ = false;
  std::vector<std::int64_t> events_;
};

}  // namespace dtr
