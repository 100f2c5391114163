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
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/csrc/engine/awaited.h"
#include "runtime/csrc/graph/executor.h"
#include "runtime/csrc/graph/records.h"
#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/neighbourhood.h"
#include "runtime/csrc/policy/selector.h"
#include "runtime/csrc/policy/tape.h"

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
  kEager,   // Its content goes at once, or stays as a stepping stone (stepping_stones.cpp).
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
        selector_(heuristic, columns_, neighbourhood_, executor) {}
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
    if (heuristic_.next_use) tapes_.advance(time);
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
    if (value.candidate != kNowhere) show_times(value);
  }

  // The program's operators and steps, for the tape (tape.h): each operator that OperatorCall
  // leads and each call of compiled code, each argument of it, and the end of each step.
  void begin_operator() {
    if (heuristic_.next_use) tapes_.begin_operator();
  }
  void accessed(Value& view) {
    Value& value = view.storage();
    if (heuristic_.next_use) {
      tapes_.accessed(value);
      if (tapes_.foretell()) update_need(value);
    }
    touch(value);
  }
  void end_operator(Nanos cost) {
    if (!heuristic_.next_use) return;
    stats_.foretold += tapes_.foretell();
    if (tapes_.end_operator(cost)) another_tape();
  }
  void end_step();

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

  // Bringing back ahead of use (ahead.cpp). The missing values whose copies are to begin between two
  // operators, in order, where a tape foretells. `most`: how long all takes that may be on its way.
  // Who begins a copy says so, and says if it was given up. A value that is passed over comes when
  // it is touched.
  bool foretells() const { return tapes_.foretell(); }
  std::vector<Value*> due(Nanos most);
  void begins_copy(Value& value);
  void pass_over(Value& value) { awaited_.remove(value); }
  void given_up(Value& value) { await(value); }

  // Recomputes `target`, which the caller has locked. Throws what an operator throws (out of memory
  // above all) with all locks given back and every value as exact as before.
  void materialize(Value& target, Lock& lock);

  // Settles every live value that reads `constant`, however indirectly, so that the constant may be
  // changed. With `since`, those alone that were made or read from then on. An error about one of
  // them is thrown when the others are settled.
  void retire(Value& constant, Lock& lock, Nanos since = Nanos::min());

  // What the program holds of values that rest on `constant`: their bytes, `enough` or all, and
  // whether these are resident and no operator is at work on them.
  struct Resting {
    Bytes bytes = 0;
    bool idle = true;
  };
  enum class Busy { kCounts, kStops };  // Whether the sum goes on behind what is not idle.
  Resting resting_on(const Value& constant, Bytes enough, Busy busy = Busy::kCounts) const;

  // Whether `value` may come to need a constant that is absent: as it is recomputed, or as what it
  // is made from has to be. Also where that is too far to see.
  bool rests_on_absent(const Value& value);
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

  // Whether a value's history is not worth keeping: the recipes of what the program has let go
  // since, and what only these read. A value that the program carries from step to step would drag
  // all its history along. But recipes are kept for what they can bring back. So a history is too
  // much where it takes as much memory as the value, or kLongestHistory operators to run again. A
  // value is asked as it is read, when the program has let go of what it was made from. Costs some
  // nanoseconds: by Value::history most need no look.
  static constexpr int kShortestHistory = 16, kLongestHistory = 256;
  bool outweighed(Value& value, int shortest = kShortestHistory) {
    return value.history >= shortest && !value.constant() && weighs_too_much(value);
  }

  // Freezes everything the program holds: afterwards nothing is recomputable and no record is left.
  // `spill` is called when a value cannot be brought back within the budget; it makes room and
  // returns true, or gives up. An error about one value is thrown when the others are frozen.
  void commit(Lock& lock, const std::function<bool()>& spill);
  // Brings back what the program holds, of each value if there is room for its bytes, and freezes
  // nothing. Whether all of it is there together. An error about one value is thrown when the others
  // are back.
  bool return_all(Lock& lock, const std::function<bool(Bytes)>& has_room);
  // Freezes what the program holds and is in memory, and calls `give_up` for the rest, which drops
  // it.
  void freeze_resident(const std::function<void(Value&)>& give_up);

  // By other settings from now on; what is there stays.
  void follow(const Heuristic& heuristic);
  const Heuristic& heuristic() const { return heuristic_; }
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

  struct History {
    int recipes = 1;  // To run again, its own included.
    int behind = 0;   // The estimate of what the program still holds there.
    Bytes kept = 0;   // Constants that only recipes hold.
    // Its own recipe aside. Each takes some 1,024 bytes, with what it made.
    Bytes weight() const { return (recipes - 1) * kRecord + kept; }
  };
  static constexpr Bytes kRecord = 1024;
  template <class Visit>
  History walk(const Value& value, Bytes enough, const Visit& visit);
  bool weighs_too_much(Value& value);
  bool shed_behind(Value& value);
  void evict_victim(Value& victim, Shed shed);
  // Of a value, and of what is missing behind it; no more is counted than `enough`.
  Nanos to_recompute(const Value& value, Nanos enough);
  void move(Value& value, Op& reload);
  void evict_together(Op& op);
  std::vector<Value*> held_on(const Value& constant) const;
  // By which scores are computed: while a tape foretells, minus the tape's (columns.h).
  Nanos score_clock() const { return tapes_.foretell() ? -tapes_.now() : stats_.clock; }
  void show_times(const Value& value) {
    columns_.copy_times(value);
    if (tapes_.foretell()) columns_.set_need(value.candidate, need(value));
  }
  void show_all_times();
  void another_tape();
  Nanos need(const Value& value) const;
  Nanos least_behind(const Value& value) const;
  template <class Changes>
  void tell_inputs(Value& value, Nanos before, const Changes& changes);
  bool counts(const Value& value, const Value& made) const;
  bool passes_on(const Value& value) const;
  bool set_need(Value& value, Nanos& before);
  void renew_need(Value& value);
  void renew_stones(Value& value);
  void update_need(Value& value);
  void update_needs_behind(Value& value, Nanos before);
  void needs_after_loss(Value& value);
  void needs_after_return(Value& value);
  void find_all_needs();
  Nanos first_need(const Value& value) const;
  void await(Value& value);
  void await_anew();
  void follow_wants(Value& value);
  void follow_wants_of_outputs(Op& op);
  void file_orphan(Value& value);
  Value* orphan() const;
  void find_all_orphans();
  void check_orphan(const Value& value) const;
  bool would_be_stone(const Value& value) const;
  bool lay_stone(Value& value);
  void lift_stone(Value& value);
  void let_stones_go(Value& made);
  void let_stone_go(Value& stone);
  void check_stone(const Value& value) const;
  std::unordered_set<Value*> reachable() const;
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
  Heuristic heuristic_;
  const Policy policy_;
  const KeepRecords records_;
  mutable std::mutex mutex_;
  Records values_and_ops_;
  ScoreColumns columns_;                 // A row for each resident and recomputable value.
  mutable Neighbourhood neighbourhood_;  // Who looks shortens paths.
  Tapes tapes_;
  std::uint32_t round_ = 1;  // Of needs that began together (needs.cpp).
  Selector selector_;
  std::vector<Value*> owned_;    // Recomputable and held by the program; resident or not.
  std::vector<Value*> orphans_;  // Among the candidates,
  std::int64_t stones_ = 0;      // and so many stepping stones.
  Awaited awaited_;
  Nanos link_free_at_ = 0ns;  // On the tape's time: when all copies are done that have begun.
  std::vector<Value*> garbage_;
  std::vector<Value*> changed_;  // What follow_wants() has yet to look at.
  EngineStats stats_;
  std::int64_t runs_before_ = 0;  // Rematerializations when the one under way began.
  std::uint64_t order_ = 0;
  bool sheds_ = false;
  std::uint64_t walk_ = 0;  // Marks of histories' walks; counts down, a neighbourhood's count up.
};

}  // namespace dtr
