// Replays a recorded run without tensors, to tell what the engine would do under a budget.
//
// The live runtime's engine runs here, but its executor only counts bytes. The rules are those of
// the paper's simulator: memory is a number, and an operator needs room for all its outputs at
// once. Simulations by the live runtime's rules are in live_simulation.h. Source: the paper,
// section 4.2 and appendix C.6.

#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "runtime/csrc/engine/operator_call.h"
#include "runtime/csrc/simulator/schedule.h"
#include "runtime/csrc/simulator/simulation.h"

namespace dtr {

class PaperSimulation final : public Executor {
 public:
  PaperSimulation(const Schedule& schedule, const SimulationOptions& options);
  ~PaperSimulation() override;

  SimulationStatus run();
  SimulationCounts counts() const;
  // Returns pairs of a tensor and a SimulationEvent; none unless log_events is set.
  const std::vector<std::int64_t>& events() const { return events_; }
  void check() const { engine_.check(); }

  // What the whole run takes without a budget, if all released tensors, also constants, are freed
  // at once. `largest_operator` is the most bytes that one operator reads and makes.
  struct Baseline {
    Bytes peak, constants, largest_operator;
    Nanos cost;
  };
  static Baseline baseline(const Schedule& schedule);

  void recompute(Op& op, Lock& lock) override;
  void release(Value& value, Loss loss) override;
  void make_ordinary(Value& value) override;
  std::pair<Bytes, Bytes> free_neighbours(const Value&) const override { return {0, 0}; }
  const Pool* pool_of_values() const override { return nullptr; }
  void forget(Value& value) override;
  void forget(Op&) override {}

 private:
  struct Payload {
    std::int64_t op, first;  // Numbers of the operator and its first result.
  };
  struct OutOfBudget : std::exception {};
  struct Thrash : std::exception {};
  void step(std::int64_t kind, std::int64_t operand, Lock& lock);
  void compute(std::int64_t op, Lock& lock);
  Op& record(std::int64_t op, const std::vector<std::int64_t>& results);
  void pin(Value& value, std::int64_t root, Lock& lock);
  void add_constant(std::int64_t tensor);
  void make_room(Bytes size);
  bool pinned(std::int64_t root) const { return pinned_[root].value(); }
  bool keeps_all() const { return options_.records == KeepRecords::kAll; }
  void let_go(std::int64_t tensor);
  std::int64_t tensor_of(const Op& op, std::int64_t output) const;
  void log(const Value& value, SimulationEvent event);

  const Schedule schedule_;
  const SimulationOptions options_;
  Engine engine_;
  std::vector<Value*> values_;        // By tensor; by root (see roots_) if views are free.
  std::vector<std::int64_t> roots_;   // By tensor: the tensor whose bytes it shares.
  std::vector<std::int64_t> held_;    // By root: how many references the program has.
  std::vector<Held> pinned_;          // By root: locks a pinned tensor.
  std::vector<Held> held_constants_;  // By tensor: locks on constants, unless all records are kept.
  std::vector<Op*> ops_;              // All Ops. Empty, like constants_, unless all are kept.
  std::vector<Value*> constants_;
  SimulationCounts counts_;
  std::vector<std::int64_t> events_;
};

}  // namespace dtr
