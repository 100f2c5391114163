// Simulates a recorded run under the live runtime's rules: with the engine, the pool and the memory
// requests of a live run, but on addresses without memory. A trace that the runtime recorded
// (live/trace/trace_recorder.h) leads to exactly the evictions of the live run. If another log does
// not say what happened, for example inside operators, the simulation makes assumptions.
//
// These rules differ from those of the paper's simulator. Here, views share their storage, since
// live views cost nothing. An in-place write keeps the block, since the program requests no memory
// for a copy. Gradients (DESIGN.md rule 1) and small tensors are constants, since the runtime does
// not recompute them. Values and recipes that nothing needs are freed, to save memory. Operators
// allocate block by block, also temporary blocks, as kernels do.

#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/engine/operator_call.h"
#include "runtime/csrc/engine/rules.h"
#include "runtime/csrc/simulator/schedule.h"
#include "runtime/csrc/simulator/simulation.h"
#include "runtime/csrc/simulator/two_ended_placement.h"

namespace dtr {

class LiveSimulation final : public Executor {
 public:
  LiveSimulation(const Schedule& schedule, const SimulationOptions& options);
  ~LiveSimulation() override;

  SimulationStatus run();
  SimulationCounts counts() const;
  PoolStats pool_stats() const { return pool_->stats(); }
  const std::vector<std::int64_t>& events() const { return events_; }  // As in PaperSimulation.
  // Pictures of the pool, in rows of four: the picture's number, an offset, bytes, and a Kind.
  enum Kind : std::int64_t { kBacked, kEvictable, kFixed };
  const std::vector<std::int64_t>& layouts() const { return layouts_; }
  void check() const;

  void recompute(Op& op, Lock& lock) override;
  void release(Value& value, Loss loss) override;
  void make_ordinary(Value& value) override;
  std::pair<Bytes, Bytes> free_neighbours(const Value& value) const override;
  const Pool* pool_of_values() const override { return pool_.get(); }
  bool kept_for_recipes(const Value& constant) const override { return constant.locks == 0; }
  Op* reload_for(const Value& value) override;
  void forget(Value& value) override;
  void forget(Op&) override {}

 private:
  struct Payload {
    std::int64_t op;
  };
  struct Away {  // The payload of an Op::reload.
    std::int64_t tensor;
    bool written = false;
  };
  struct OutOfBudget : std::exception {};
  struct Thrash : std::exception {};
  struct Kernel;  // simulated_kernel.h
  struct Buffers;

  void step(std::int64_t kind, std::int64_t operand, Lock& lock);
  void compute(std::int64_t op, Lock& lock);
  void bring_in(std::int64_t op);
  void keep(Value* value, Lock& lock, void (Engine::*way)(Value&));
  std::vector<std::int64_t> stored_results(std::int64_t op) const;
  Op& record(std::int64_t op, const std::vector<Value*>& arguments, std::size_t results);
  void adopt_fresh(std::int64_t number, const std::vector<std::int64_t>& results, Op* op);
  void adopt_written(const std::vector<std::int64_t>& results, OperatorCall& call);
  void adopt(std::int64_t tensor, Op* op, std::uint16_t output, Bytes size, void* data);
  void lay_out_written(Op& op, const std::vector<std::int64_t>& results, std::vector<void*>& made);
  void restore_outputs(Op& op, const std::vector<std::int64_t>& results, std::vector<void*>& made);
  void let_go(std::int64_t root);
  Block* allocate(Bytes size, Place place = Place::kBestFit);
  Nanos cost_of(std::int64_t op) const;  // Its time or, by logical_clock, the bytes it touches.
  void picture();
  void free(void* data);
  void log(std::int64_t tensor, std::int64_t event);
  std::int64_t tensor_of(const Value& value) const;
  // For values that move to a second tier over the link and come back (simulated_swap.cpp).
  bool may_move(Bytes size) const { return link_ && size >= link_->smallest; }
  Op& begin_reload(std::int64_t tensor, Bytes size);
  void adopt_movable(std::int64_t tensor, Bytes size, void* data);
  static Away& away(const Value& value) { return *static_cast<Away*>(value.producer->payload()); }
  void store(Value& value);
  void reload(Op& op);
  void check_thrash() const;
  void own(void* data, Value* value);  // Sets the block's owner; null: not evictable.
  void* nowhere() { return this; }     // Stands for content of 0 bytes.
  void add_constant(std::int64_t root, Bytes size, void* data);
  Value& value_of(std::int64_t tensor) const {
    if (Value* value = values_[roots_[tensor]]) return *value;
    throw std::invalid_argument("the log reads a tensor that is gone");
  }
  Value& written(Op& op, std::int64_t tensor) const;
  // Returns whether a constant is so small that recipes hold a copy (recipe.h) instead of an input.
  bool inlined(std::int64_t tensor) const {
    return kept_in_recipe(schedule_.tensor_size[roots_[tensor]]);
  }
  bool fresh(std::int64_t tensor) const {
    return roots_[tensor] == tensor && schedule_.tensor_in_place[tensor] < 0;
  }

  const Schedule schedule_;
  const SimulationOptions options_;
  Pool::Handle pool_;
  Engine engine_;
  std::vector<Value*> values_;       // By root (see roots_); null once the program dropped it.
  std::vector<Held> constants_;      // By root: locks a constant that the program holds.
  std::vector<std::int64_t> roots_;  // By tensor: the tensor whose bytes it shares.
  std::vector<std::int64_t> held_;   // By root: how many references the program has.
  TwoEndedPlacement placement_;
  std::optional<Transfer> link_;
  SimulationCounts counts_;
  std::vector<std::int64_t> events_, layouts_;
  std::int64_t pictures_ = 0;
};

}  // namespace dtr
