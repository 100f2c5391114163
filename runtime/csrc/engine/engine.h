// The DTR engine knows which values (contents of storages, graph.h) are resident, that is in
// memory, and recomputes the others when they are needed (paper, section 3 and Figure 1). Class
// Eviction chooses what to evict (eviction.h). The engine neither calls torch nor holds tensors'
// memory: an Executor does both. So live training and simulation share the engine.
//
// When the program drops a value, its content is freed at once, unless it is a stepping stone: a
// small value that makes a larger one cheap to recompute (stepping_stones.h). The value's recipe
// stays while another recipe reads the value. Recomputation keeps a stack of operators instead of
// recursing, so a chain of missing values may have any length. While an operator on the stack waits
// for a missing input, its resident inputs are locked, that is not evicted, as in the paper's
// recursion (but see Eviction::evict_waiting).
//
// One mutex guards the engine. Callers hold it in each call; it is released while operators run.

#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/csrc/engine/eviction.h"
#include "runtime/csrc/engine/histories.h"
#include "runtime/csrc/engine/needs.h"
#include "runtime/csrc/engine/orphans.h"
#include "runtime/csrc/engine/stepping_stones.h"
#include "runtime/csrc/graph/executor.h"
#include "runtime/csrc/graph/records.h"
#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/neighbourhood.h"

namespace dtr {

struct EngineStats {
  // Includes evictions by dtr_alloc.evict and by the option evict_always. Drops do not count.
  std::int64_t evictions = 0;
  std::int64_t rematerializations = 0;            // Reruns of operators, and copies from the swap.
  std::int64_t values = 0, ops = 0, classes = 0;  // How many exist: Values, Ops, evicted classes.
  Bytes evictable = 0, largest_operator = 0;
  std::int64_t foretold = 0;  // Operators that ran while a tape predicted uses (policy/tape.h).
  // Sums of time: of all runs of operators, of first runs, of reruns. The first two include
  // compiled code's own time (worked()).
  Nanos clock = 0ns, base_cost = 0ns, remat_cost = 0ns;
  std::int64_t evaluations = 0;  // Scores computed.
  std::int64_t accesses = 0;     // `evaluations`, plus graph edges and records visited.
};

// What happens to a value that the program drops (paper, appendices C.4 and C.5).
enum class Policy {
  kEager,   // Its content is freed at once, unless it is a stepping stone (stepping_stones.h).
  kBanish,  // It is erased when all values made from it are resident; those become constants.
  kIgnore,  // Its content stays until it has the least score and is evicted.
};

// Which records (Values and Ops) are kept. The live runtime keeps only those that a recomputation
// may need. The paper's simulator keeps all, so that values that nothing needs still count as
// evicted neighbours.
enum class KeepRecords { kNeeded, kAll };

class Engine {
 public:
  Engine(Executor& executor, Heuristic heuristic, Policy policy = Policy::kEager,
         KeepRecords records = KeepRecords::kNeeded)
      : executor_(executor),
        heuristic_(heuristic),
        policy_(policy),
        records_(records),
        neighbourhood_(heuristic.neighbourhood, columns_),
        stones_(heuristic.stepping_stones),
        needs_(heuristic.next_use, columns_, neighbourhood_, stones_),
        orphans_(columns_, heuristic.orphans_first),
        eviction_(*this, executor, heuristic_, columns_, neighbourhood_, needs_, orphans_),
        histories_(executor) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::mutex& mutex() const { return mutex_; }

  // To record an operator: begin() allocates its recipe, read() adds an input, write() adds a
  // resident output. finish() sets the cost and makes the outputs evictable; without outputs it
  // discards the recipe.
  Op* begin(std::uint32_t inputs, std::uint16_t outputs, std::size_t payload_bytes);
  void read(Op& op, std::uint32_t index, Value& value);
  Value& write(Op& op, std::uint16_t output, Bytes size, void* home, void* data);
  void finish(Op& op, Nanos cost);
  void abandon(Op& op);                    // Discards the recipe.
  void finish_reload(Op& op);              // finish() for an Op::reload, whose cost is set already.
  void reprice(Value& value, Nanos cost);  // Sets the cost of a resident movable value.
  Value& constant(Bytes size, void* home, void* data);

  // Another way to record, for simulations, where the outputs are known before the operator runs:
  // expect() adds a missing output, view() a missing output that shares the bytes of `base`. Then
  // compute(), in place of finish(), runs the operator.
  Value& expect(Op& op, std::uint16_t output, Bytes size, void* home);
  Value& view(Op& op, std::uint16_t output, Value& base, void* home);
  void compute(Op& op, Nanos cost, Lock& lock);

  // Adds the cost of an operator that has no recipe to the clock.
  void advance(Nanos cost) { stats_.clock += cost, stats_.base_cost += cost; }
  // Adds compiled code's own time, without that of the operators that it called, to the clock.
  void worked(Nanos time) {
    advance(time);
    needs_.advance(time);
  }

  Nanos clock() const { return stats_.clock; }

  void lock(Value& view) {
    Value& value = view.storage();
    if (++value.locks == 1 && value.candidate != kNowhere) columns_.forbid(value);
  }
  void unlock(Value& value);
  void touch(Value& view) {
    Value& value = view.storage();
    value.last_access = stats_.clock;
    if (value.candidate != kNowhere) needs_.show(value);
  }

  void begin_operator() { needs_.begin_operator(); }
  void accessed(Value& view) {
    Value& value = view.storage();
    needs_.accessed(value);
    touch(value);
  }
  void end_operator(Nanos cost) { stats_.foretold += needs_.end_operator(cost); }
  void end_step() { needs_.end_step(); }

  void dropped(Value& value);
  void overwritten(Value& value);    // The value's storage was written, and now holds a new value.
  void* reuse_buffer(Value& value);  // Returns the value's memory, for a replay to overwrite.
  void freeze(Value& value);         // Makes a resident value a constant, without a recipe.
  void settle(Value& value);         // Makes a resident value movable to the swap, else constant.
  void restore(Value& value, void* data);  // Gives a missing value its content.

  // Frees all records at once. `ops` and `constants` must list all Ops and all constants. Requires
  // KeepRecords::kAll. Do not use the engine afterwards.
  void discard(const std::vector<Op*>& ops, const std::vector<Value*>& constants);

  void evict(Value& value);             // It must be resident, recomputable and unlocked.
  void move(Value& value, Op& reload);  // Replaces a resident value's recipe by `reload`.
  bool let_all_stones_go();             // Frees all stepping stones; false if there were none.
  // Allows moves of values to the swap. Call it before any value exists.
  void move_by(const Transfer& transfer) { columns_.limit_costs(transfer); }
  bool moves() const { return columns_.transfer().has_value(); }

  // Recomputes `target`, if it is missing; the caller has locked it. If an operator throws (mostly
  // for lack of memory), unlocks what it locked and throws the same error. Missing values can still
  // be recomputed then.
  void materialize(Value& target, Lock& lock);

  const Heuristic& heuristic() const { return heuristic_; }
  Needs& needs() { return needs_; }
  Histories& histories() { return histories_; }
  Eviction& eviction() { return eviction_; }
  const Eviction& eviction() const { return eviction_; }
  const std::vector<Value*>& owned() const { return owned_; }
  EngineStats stats() const;
  Bytes largest_operator() const { return stats_.largest_operator; }
  void note_operator(Bytes bytes);  // Updates largest_operator(); `bytes` counts each tensor once.
  // For tests: throws std::logic_error if a record is wrong. `idle`: no operator runs and no Held
  // exists. Then a lock is wrong, too, unless keep_until_used() or keep_until_died() took it.
  void check(bool idle = false) const;

 private:
  class Rematerialization;
  class Check;

  void let_stones_go(Value& made);
  void let_stone_go(Value& stone);
  void own(Value& value);
  void add_candidate(Value& value);
  void remove_candidate(Value& value);
  void disown(Value& value);
  void lose(Value& value, Loss loss);
  void let_go(Value& value);
  void recompute(Op& op, Value& wanted, Lock& lock);
  void unlink(Value& value);  // Takes the value out of its recipe; erases a recipe without outputs.
  void erase(Op& op);
  void collect(Value& value);  // Frees it, unless needed, and records needed only by it.
  void collect_or_banish(Value& value);

  // Guarded by: nothing: const
  Executor& executor_;
  const Heuristic heuristic_;
  const Policy policy_;
  const KeepRecords records_;

  mutable std::mutex mutex_;

  // Guarded by: mutex_
  Records values_and_ops_;
  ScoreColumns columns_;                 // A row for each resident and recomputable value.
  mutable Neighbourhood neighbourhood_;  // Mutable, since lookups shorten union-find paths.
  std::vector<Value*> owned_;            // Recomputable values of the program, resident or not.
  SteppingStones stones_;
  mutable Needs needs_;  // Mutable, since check() makes it catch up.
  Orphans orphans_;
  Eviction eviction_;
  Histories histories_;
  std::vector<Value*> garbage_;
  EngineStats stats_;
  std::uint64_t order_ = 0;
};

}  // namespace dtr
