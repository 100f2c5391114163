// The DTR engine: which values are resident, and how a missing one comes back (paper, section 3 and
// Figure 1). Which one goes next, Eviction decides (eviction.h). It knows neither torch nor memory;
// an Executor does both for it, so live training and simulation share it.
//
// Deallocation is eager: a value the program drops loses its content at once, unless it is a
// stepping stone, and its recipe stays for as long as something reads it. Materializing walks
// producers with an explicit stack, so a chain of any length works; every input of a pending
// operator is locked, as in the paper's recursion.
//
// One lock guards all of it. Methods want it held unless they say otherwise; it is open whenever an
// operator runs.

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
  // To make room, by hand or in evict_always mode; not what the program drops.
  std::int64_t evictions = 0;
  std::int64_t rematerializations = 0;            // Operators run again, and reloads.
  std::int64_t values = 0, ops = 0, classes = 0;  // Live records.
  Bytes evictable = 0, largest_operator = 0;
  std::int64_t foretold = 0;  // Operators of the program at which a tape was followed.
  // By recorded costs, and by what compiled code took.
  Nanos clock = 0ns, base_cost = 0ns, remat_cost = 0ns;
  std::int64_t evaluations = 0;  // Scores computed.
  std::int64_t accesses = 0;     // Those, and edges and records visited for them (appendix D.3).
};

// What happens to a value that the program drops (paper, appendices C.4 and C.5).
enum class Policy {
  kEager,   // Its content goes at once, or stays as a stepping stone (stepping_stones.h).
  kBanish,  // It goes for good once all that was made from it is resident; that is then constant.
  kIgnore,  // Nothing: it goes when it has the least score.
};

// Which records are kept. Live, those that something may need. The paper's simulator keeps all, so
// that values nobody can ask for again still count as evicted neighbours.
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

  // Recording. begin() takes memory for a recipe; read() links its inputs; write() adds what it
  // made, resident; finish() gives it its cost and makes the outputs evictable, or throws the
  // recipe away where it made nothing to evict.
  Op* begin(std::uint32_t inputs, std::uint16_t outputs, std::size_t payload_bytes);
  void read(Op& op, std::uint32_t index, Value& value);
  Value& write(Op& op, std::uint16_t output, Bytes size, void* home, void* data);
  void finish(Op& op, Nanos cost);
  void abandon(Op& op);        // As if it had never been begun.
  void finish_reload(Op& op);  // As finish(), of an Op::reload: nothing ran, and it has its cost.
  void reprice(Value& value, Nanos cost);  // Of a reload, whose value is resident.
  Value& constant(Bytes size, void* home, void* data);

  // The other way to record, where the outputs are known before the operator runs: expect() links
  // them, missing, instead of write(), and compute() runs the operator. view() adds an output that
  // shares the bytes of `base`. The first output is the one asked for.
  Value& expect(Op& op, std::uint16_t output, Bytes size, void* home);
  Value& view(Op& op, std::uint16_t output, Value& base, void* home);
  void compute(Op& op, Nanos cost, Lock& lock);

  // An operator ran that is not recorded.
  void advance(Nanos cost) { stats_.clock += cost, stats_.base_cost += cost; }
  // Compiled code ran so long, beside the operators that it called.
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

  void dropped(Value& value);        // The program let its storage go.
  void overwritten(Value& value);    // Its storage was written: the content is another value's now.
  void* reuse_buffer(Value& value);  // A replay takes its content as the buffer it writes.
  void freeze(Value& value);         // Resident: a constant from now on, its recipe forgotten.
  // The same where it cannot be moved. Otherwise it may be, and is no constant.
  void settle(Value& value);
  void restore(Value& value,
               void* data);  // From Executor::recompute: content for a missing output.

  // Takes back all records at once, where all are kept: `ops` and `constants` are all there are.
  // Nothing is done to the engine afterwards.
  void discard(const std::vector<Op*>& ops, const std::vector<Value*>& constants);

  void evict(Value& value);             // Resident, recomputable and not locked.
  void move(Value& value, Op& reload);  // Such a value gets another recipe, an Op::reload.
  bool let_all_stones_go();  // Of what the program has dropped; false where nothing had stayed.
  // Lets values be moved. Before there are any.
  void move_by(const Transfer& transfer) { columns_.limit_costs(transfer); }
  bool moves() const { return columns_.transfer().has_value(); }

  // Recomputes `target`, which the caller has locked. Throws what an operator throws (out of memory
  // above all) with all locks given back and every value as exact as before.
  void materialize(Value& target, Lock& lock);

  const Heuristic& heuristic() const { return heuristic_; }
  Needs& needs() { return needs_; }
  Histories& histories() { return histories_; }
  Eviction& eviction() { return eviction_; }
  const Eviction& eviction() const { return eviction_; }
  // Recomputable and held by the program; resident or not.
  const std::vector<Value*>& owned() const { return owned_; }
  EngineStats stats() const;
  void note_operator(Bytes bytes);  // Bytes of all distinct inputs and outputs of one operator.
  // Walks everything; throws std::logic_error with a sentence. For tests. `idle`: no operator is
  // under way, and nobody holds a value, so that none may be locked.
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
  void unlink(Value& value);  // From its producer, which goes with its last output.
  void erase(Op& op);
  void collect(Value& value);  // Frees it, and whatever only it kept, if nothing needs it.
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
  mutable Neighbourhood neighbourhood_;  // Who looks shortens paths.
  std::vector<Value*> owned_;            // Recomputable and held by the program; resident or not.
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
