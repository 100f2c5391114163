// The DTR engine: which values are resident, which one goes next, and how a missing one comes back
// (paper, section 3 and Figure 1). It knows neither torch nor memory; an Executor does both for it,
// so live training and simulation share it.
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
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/csrc/engine/histories.h"
#include "runtime/csrc/engine/needs.h"
#include "runtime/csrc/engine/orphans.h"
#include "runtime/csrc/engine/stepping_stones.h"
#include "runtime/csrc/graph/executor.h"
#include "runtime/csrc/graph/records.h"
#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/neighbourhood.h"
#include "runtime/csrc/policy/selector.h"

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
        selector_(heuristic, columns_, neighbourhood_, executor),
        orphans_(columns_, heuristic.orphans_first),
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

  // The result of `empty` is locked until an operator reads or fills it, which calls used(): a
  // kernel may fill it through a pointer, and must not find it evicted.
  void keep_until_used(Value& value) {
    value.unfilled = true;
    lock(value);
  }
  void used(Value& value) {
    if (!std::exchange(value.unfilled, false)) return;
    touch(value);
    unlock(value);
  }
  // A value whose storage is dying in another thread: its deleter has a pointer to the value, and
  // calls died().
  void keep_until_died(Value& value) {
    value.dying = true;
    lock(value);
  }
  void died(Value& value) {
    value.dying = false;
    unlock(value);
  }

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

  // The value of least score, or what is shed instead of it; false where nothing may go.
  enum class Shed { kBehindVictim, kNothing };
  bool evict_one(Shed shed = Shed::kBehindVictim);
  bool evict_orphan();       // What goes before all; false where there is none.
  bool let_all_stones_go();  // Of what the program has dropped; false where nothing had stayed.
  bool evict_waiting();      // The same among what only waiting recomputations hold.
  void evict(Value& value);  // Resident, recomputable and not locked.
  void evict_all();
  // The same, but where that costs no more than to recompute it, it goes outside of memory, and its
  // recipe is forgotten. Others that the program has let go may go with the recipe.
  void evict_or_move(Value& value);
  void move_all();
  // Lets values be moved. Before there are any.
  void move_by(const Transfer& transfer) { columns_.limit_costs(transfer); }
  bool moves() const { return columns_.transfer().has_value(); }

  // Recomputes `target`, which the caller has locked. Throws what an operator throws (out of memory
  // above all) with all locks given back and every value as exact as before.
  void materialize(Value& target, Lock& lock);

  // Settles every live value that reads `constant`, however indirectly, so that the constant may be
  // changed. With `since`, those alone that were made or read from then on. An error about one of
  // them is thrown when the others are settled.
  void retire(Value& constant, Lock& lock, Nanos since = Nanos::min());

  // The content of `lost` will not come back. Freezes what rests on it, is resident and held by the
  // program. The rest cannot be recomputed.
  void forsake(const Value& lost);

  // What the program has let go may live on because recipes read it: an input, a copy. Where no
  // more than its size rests on it, and all that is resident, that becomes constant instead, for
  // which nothing need be run. Returns whether anything did. With shed_before_evicting() the same
  // is done for what is behind a victim: a small result must not go, and leave a batch for its
  // recipe.
  bool shed(Value& constant);
  void shed_before_evicting() { sheds_ = true; }

  // Freezes everything the program holds: afterwards nothing is recomputable and no record is left.
  // `spill` is called when a value cannot be brought back within the budget; it makes room and
  // returns true, or gives up. An error about one value is thrown when the others are frozen.
  void commit(Lock& lock, const std::function<bool()>& spill);
  // Brings back what the program holds, of each value if there is room for its bytes, and freezes
  // nothing. Whether all of it is there together. An error about one value is thrown when the
  // others are back.
  bool return_all(Lock& lock, const std::function<bool(Bytes)>& has_room);
  // Freezes what the program holds and is in memory, and calls `give_up` for the rest, which drops
  // it.
  void freeze_resident(const std::function<void(Value&)>& give_up);

  const Heuristic& heuristic() const { return heuristic_; }
  Needs& needs() { return needs_; }
  Histories& histories() { return histories_; }
  Selector& selector() { return selector_; }
  const Selector& selector() const { return selector_; }
  Window cheapest_window(const Pool& pool, Bytes bytes) {
    return selector_.cheapest_window(pool, bytes, score_clock());
  }
  EngineStats stats() const;
  Bytes locked_bytes() const;
  Bytes evictable_bytes() const;    // What evict_all() would free in the pool.
  void note_operator(Bytes bytes);  // Bytes of all distinct inputs and outputs of one operator.
  // Walks everything; throws std::logic_error with a sentence. For tests. `idle`: no operator is
  // under way, and nobody holds a value, so that none may be locked.
  void check(bool idle = false) const;

 private:
  struct Pending;

  bool shed_behind(Value& value);
  void evict_victim(Value& victim, Shed shed);
  // Of a value, and of what is missing behind it; no more is counted than `enough`.
  Nanos to_recompute(const Value& value, Nanos enough);
  void move(Value& value, Op& reload);
  void evict_together(Op& op);
  // By which scores are computed: while a tape foretells, minus the tape's (columns.h).
  Nanos score_clock() const { return needs_.foretells() ? -needs_.now() : stats_.clock; }
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
  void settle_together(const std::vector<Value*>& values);
  static void let_die(std::exception_ptr& error, Lock& lock);
  void retain(Value& value, Lock& lock, void (Engine::*keep)(Value&));
  void unlock_inputs(Op& op);

  Executor& executor_;
  const Heuristic heuristic_;
  const Policy policy_;
  const KeepRecords records_;
  mutable std::mutex mutex_;
  Records values_and_ops_;
  ScoreColumns columns_;                 // A row for each resident and recomputable value.
  mutable Neighbourhood neighbourhood_;  // Who looks shortens paths.
  std::vector<Value*> owned_;            // Recomputable and held by the program; resident or not.
  SteppingStones stones_;
  Needs needs_;
  Selector selector_;
  Orphans orphans_;
  Histories histories_;
  std::vector<Value*> garbage_;
  EngineStats stats_;
  std::int64_t runs_before_ = 0;  // Rematerializations when the one under way began.
  std::uint64_t order_ = 0;
  bool sheds_ = false;
};

}  // namespace dtr
