// A recorded run, replayed without tensors: what would the engine have done under this budget?
//
// It is the engine of the live runtime on an executor that only counts, by the rules of the paper's
// simulator: memory is a number, and an operator needs room for all its outputs at once. The live
// runtime's rules are in live_simulation.h. Source: the paper, section 4.2 and appendix C.6.

#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "runtime/csrc/engine/operator_call.h"

namespace dtr {

// A trace as flat columns (runtime/trace/__init__.py makes it). Tensors are numbered in the order of the
// operators that make them; the results of one operator are consecutive.
struct Schedule {
  // What can happen: an operator runs; the program takes a reference; a tensor is brought into
  // memory for good; a reference is given back. The last two are for the live runtime's rules: a
  // tensor can't be recomputed any more; an optimizer's step ends.
  enum Kind : std::int64_t { kCompute, kGet, kPin, kRelease, kFreeze, kStep };
  // What happens to memory inside an operator: so many bytes are allocated; the how-manieth of its
  // blocks is freed; the program lets a tensor go; so many bytes that it writes are copied before
  // it runs again.
  enum MemoryEvent : std::int64_t { kAllocated, kFreed, kReleased, kCopied };

  std::span<const std::int64_t> tensor_size;   // Bytes; 0 for a view.
  std::span<const std::int64_t> tensor_alias;  // The tensor whose bytes it shares, or -1.
  std::span<const std::int64_t> op_cost, op_constant, op_together;
  std::span<const std::int64_t> op_args_begin, op_args;  // Compressed rows.
  std::span<const std::int64_t> op_results_begin;
  std::span<const std::int64_t> kind, operand;  // Instructions: an operator's or a tensor's number.

  // For the live runtime's rules.
  std::span<const std::int64_t> tensor_tracked;   // 1, 0, or -1: by its size.
  std::span<const std::int64_t> tensor_in_place;  // The tensor whose storage it was written to, -1.
  std::span<const std::int64_t> tensor_block;     // The how-manieth block of its operator, or -1.
  // Compressed rows. An operator without any allocates its fresh results in order.
  std::span<const std::int64_t> op_events_begin, event_kind, event_value;

  std::int64_t ops() const { return static_cast<std::int64_t>(op_cost.size()); }
  std::int64_t tensors() const { return static_cast<std::int64_t>(tensor_size.size()); }
  Nanos cost(std::int64_t op) const { return Nanos{op_cost[op]}; }
  std::span<const std::int64_t> args(std::int64_t op) const {
    return op_args.subspan(op_args_begin[op], op_args_begin[op + 1] - op_args_begin[op]);
  }
  bool tracked(std::int64_t tensor) const;
  std::vector<std::int64_t> roots() const;  // By tensor: the first of those that share its bytes.
};

// Where the pool puts a block. kTwoEnded: what can't be evicted and what is dear for its bytes at
// the high end, what is cheap at the low end, so that cheap neighbours go together. Dear is what
// costs more time a byte than the running median of all results.
enum class Placement { kBestFit, kTwoEnded };

// How a value leaves memory where there is a link to a second tier.
enum class Leaving { kDrop, kSwap, kBoth };

struct SimulationOptions {
  Bytes budget = 0;
  Heuristic heuristic;
  Policy policy = Policy::kEager;
  // The paper's simulator recomputes views as operators of their own, and keeps every record. Live,
  // views share their storage and need no operator, and a record that nothing can ask for goes.
  bool free_views = false;
  KeepRecords records = KeepRecords::kAll;
  Nanos remat_limit = 0ns;  // Thrash: more recomputation than this. 0 for no limit.
  bool remap = true;        // The arena has addresses to spare, so that pages can be moved.
  std::optional<MovePrices> prices;  // Of moving them; else the usual ones.
  Placement placement = Placement::kBestFit;
  std::int64_t layouts = 0;    // How many pictures of the pool to take, evenly over the run.
  bool logical_clock = false;  // Victims are chosen as if operators cost the bytes they touch.
  bool pin_outputs = true;  // What the program still holds at the end must be in memory together.
  bool log_events = false;  // Keep what was evicted and computed, in order.
  std::optional<Transfer> link;  // To a second tier, as large as need be.
  Leaving leaving = Leaving::kBoth;
};

struct SimulationCounts {
  Bytes usage = 0, peak = 0;
  Nanos base = 0ns, remat = 0ns;
  std::int64_t evictions = 0;  // Of them `eager` as the program let go.
  std::int64_t eager = 0;
  std::int64_t remats = 0, collateral = 0;  // Operators run again; other outputs they brought back.
  std::int64_t evaluations = 0, accesses = 0;

  // Of requests that the pool could not serve at once: how many; the sums of 1 - largest hole /
  // free before, and of free / budget after; bytes evicted beyond what was asked; time to find
  // room.
  std::int64_t misses = 0;
  double fragmentation = 0, free_after = 0;
  Bytes evicted_bytes = 0, wasted_bytes = 0;
  Nanos search_ns = 0ns;
  Nanos move_ns = 0ns;  // What moving pages would take, at SimulationOptions::prices.

  // Over the link: bytes each way, how often a value came back, how long the program waited.
  Bytes out = 0, in = 0;
  std::int64_t reloads = 0;
  Nanos waited = 0ns;
};

enum class SimulationStatus { kOk, kOutOfMemory, kThrash };

class PaperSimulation final : public Executor {
 public:
  PaperSimulation(const Schedule& schedule, const SimulationOptions& options);
  ~PaperSimulation() override;

  SimulationStatus run();
  SimulationCounts counts() const;
  enum Event : std::int64_t { kComputed, kEvicted, kDropped };
  // Pairs of a tensor and an event. Filled where log_events is set.
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
  void recompute(Op& op, Lock& lock) override;
  void release(Value& value, Loss loss) override;
  void make_ordinary(Value& value) override;
  std::pair<Bytes, Bytes> free_neighbours(const Value&) const override { return {0, 0}; }
  const Pool* pool_of_values() const override { return nullptr; }
  void forget(Value& value) override;
  void forget(Op&) override {}

 private:
  struct Payload {
    std::int64_t op, first;  // Its number and its first result's.
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
  void log(const Value& value, Event event);

  const Schedule schedule_;
  const SimulationOptions options_;
  Engine engine_;
  std::vector<Value*> values_;        // By tensor; by root where views are free.
  std::vector<std::int64_t> roots_;   // By tensor: the one whose bytes it shares.
  std::vector<std::int64_t> held_;    // By tensor, at roots: references of the program.
  std::vector<Held> pinned_;          // By tensor, at roots.
  std::vector<Held> held_constants_;  // By tensor: while the program holds it, and records may go.
  std::vector<Op*> ops_;              // These two where every record is kept.
  std::vector<Value*> constants_;
  SimulationCounts counts_;
  std::vector<std::int64_t> events_;
};

}  // namespace dtr
