// The DTR engine: knows which values are resident, and rematerializes missing ones (paper, section
// 3 and Figure 1). Class Eviction chooses the victims (eviction.h). The engine knows neither torch
// nor memory: an Executor handles both, so live training and simulation share the engine.
//
// Deallocation is eager: when the program drops a value, its content is freed at once, unless it is
// a stepping stone (stepping_stones.h). Its recipe stays while another recipe reads the value.
// Recomputing walks producers with an explicit stack, so a chain may have any length. All inputs of
// waiting operators are locked, as in the paper's recursion.
//
// One lock guards the engine. Callers hold it unless a method says otherwise. It is released while
// an operator runs.

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
  // Includes evictions by hand and in evict_always mode. Dropped values do not count.
  std::int64_t evictions = 0;
  std::int64_t rematerializations = 0;            // Operators that ran again, and reloads.
  std::int64_t values = 0, ops = 0, classes = 0;  // Numbers of live records.
  Bytes evictable = 0, largest_operator = 0;
  std::int64_t foretold = 0;  // Operators run while a tape was followed (policy/tape.h).
  // Sums of operators' costs and time in compiled code: of all runs, of first runs, of replays.
  Nanos clock = 0ns, base_cost = 0ns, remat_cost = 0ns;
  std::int64_t evaluations = 0;  // Scores computed.
  std::int64_t accesses = 0;     // Evaluations, and edges and records visited (appendix D.3).
};

// What happens to a value that the program drops (paper, appendices C.4 and C.5).
enum class Policy {
  kEager,   // Its content is freed at once, unless it is a stepping stone (stepping_stones.h).
  kBanish,  // It is erased once all values made from it are resident; these become constants.
  kIgnore,  // It stays, and is evicted when it has the least score.
};

// Which records are kept. The live runtime keeps only records that may be needed. The paper's
// simulator keeps all, so that unreachable values still count as evicted neighbours.
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
        needs_(heuristic.next_use, columns_, neighbourhood_, stones_, owned_),
        orphans_(columns_, heuristic.orphans_first),
        eviction_(*this, executor, heuristic_, columns_, neighbourhood_, needs_, orphans_),
        histories_(executor) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::mutex& mutex() const { return mutex_; }

  // Recording. begin() allocates a recipe; read() links an input; write() adds a resident output;
  // finish() sets the cost and makes the outputs evictable, or discards a recipe without outputs.
  Op* begin(std::uint32_t inputs, std::uint16_t outputs, std::size_t payload_bytes);
  void read(Op& op, std::uint32_t index, Value& value);
  Value& write(Op& op, std::uint16_t output, Bytes size, void* home, void* data);
  void finish(Op& op, Nanos cost);
  void abandon(Op& op);                    // Discards the recipe.
  void finish_reload(Op& op);              // finish() for an Op::reload: its cost is set already.
  void reprice(Value& value, Nanos cost);  // Sets the cost of a resident movable value.
  Value& constant(Bytes size, void* home, void* data);

  // Another way to record, if the outputs are known before the operator runs: instead of write(),
  // expect() adds a missing output, and compute() runs the operator to materialize the first
  // output. view() adds an output that shares the bytes of `base`.
  Value& expect(Op& op, std::uint16_t output, Bytes size, void* home);
  Value& view(Op& op, std::uint16_t output, Value& base, void* home);
  void compute(Op& op, Nanos cost, Lock& lock);

  // Counts an operator that is not recorded.
  void advance(Nanos cost) { stats_.clock += cost, stats_.base_cost += cost; }
  // Counts the time of compiled code, without the operators that it called.
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

  void dropped(Value& value);        // The program dropped the value's storage.
  void overwritten(Value& value);    // The value's storage was written, and holds a new value now.
  void* reuse_buffer(Value& value);  // Gives the value's memory to a replay that overwrites it.
  void freeze(Value& value);         // Makes a resident value a constant, without a recipe.
  // Makes a resident value movable to the swap (live/storages/swap.h), else a constant.
  void settle(Value& value);
  void restore(Value& value, void* data);  // Gives a missing output its content.

  // Frees all records at once: `ops` and `constants` list them all. Requires KeepRecords::kAll.
  // Nothing may use the engine afterwards.
  void discard(const std::vector<Op*>& ops, const std::vector<Value*>& constants);

  void evict(Value& value);             // It must be resident, recomputable and unlocked.
  void move(Value& value, Op& reload);  // Replaces such a value's recipe by an Op::reload.
  bool let_all_stones_go();             // Frees all stepping stones; false if there were none.
  // Allows moves to the swap. Called before any value exists.
  void move_by(const Transfer& transfer) { columns_.limit_costs(transfer); }
  bool moves() const { return columns_.transfer().has_value(); }

  // Recomputes `target`, which the caller has locked. If an operator throws (mostly out of memory),
  // unlocks the inputs, leaves all values intact, and throws the same error.
  void materialize(Value& target, Lock& lock);

  const Heuristic& heuristic() const { return heuristic_; }
  Needs& needs() { return needs_; }
  Histories& histories() { return histories_; }
  Eviction& eviction() { return eviction_; }
  const Eviction& eviction() const { return eviction_; }
  // Recomputable values that the program holds, resident or not.
  const std::vector<Value*>& owned() const { return owned_; }
  EngineStats stats() const;
  void note_operator(Bytes bytes);  // `bytes`: of its inputs and outputs.
  // For tests: checks all records, and throws std::logic_error if any is wrong. `idle`: no operator
  // runs and no code holds a value, so a locked value is wrong.
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
  void unlink(Value& value);  // Unlinks it from its producer. Erases a producer without outputs.
  void erase(Op& op);
  void collect(Value& value);  // If it is not needed, frees it and records that only it kept.
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
  mutable Neighbourhood neighbourhood_;  // A lookup compresses union-find paths.
  std::vector<Value*> owned_;            // Recomputable values of the program, resident or not.
  SteppingStones stones_;
  Needs needs_;
  Orphans orphans_;
  Eviction eviction_;
  Histories histories_;
  std::vector<Value*> garbage_;
  EngineStats stats_;
  std::uint64_t order_ = 0;
};

}  // namespace dtr
