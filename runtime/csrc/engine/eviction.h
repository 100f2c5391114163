// Chooses victims: values that leave memory to make room. A victim is evicted, or moved to the swap
// if a transfer takes no longer than recomputing it. In its place, we may free constants in its
// history (histories.h) that only recipes keep in memory. Orphans are evicted first: dropped values
// that nothing needs now (orphans.h). Then the selector (policy/selector.h) chooses by score.

#pragma once

#include <cstdint>

#include "runtime/csrc/engine/needs.h"
#include "runtime/csrc/engine/orphans.h"
#include "runtime/csrc/graph/executor.h"
#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/neighbourhood.h"
#include "runtime/csrc/policy/selector.h"

namespace dtr {

class Engine;

// The engine's lock guards all members.
class Eviction {
 public:
  Eviction(Engine& engine, Executor& executor, const Heuristic& heuristic, ScoreColumns& columns,
           Neighbourhood& neighbourhood, Needs& needs, Orphans& orphans)
      : engine_(engine),
        executor_(executor),
        columns_(columns),
        needs_(needs),
        orphans_(orphans),
        selector_(heuristic, columns, neighbourhood, executor) {}

  // Evicts one victim. With kBehindVictim, may instead free constants in the victim's history that
  // only recipes keep in memory. Returns false if nothing can be evicted.
  enum class Shed { kBehindVictim, kNothing };
  bool evict_one(Shed shed = Shed::kBehindVictim);
  bool evict_orphan();   // Evicts an orphan; false if there is none.
  bool evict_waiting();  // Evicts a value that only waiting operators lock; else false.
  void evict_all();
  // If recomputing the value takes at least as long as a transfer, moves the value to the swap,
  // erases its recipe, and frees dropped values that only this recipe read. Else evicts the value.
  void evict_or_move(Value& value);
  void move_all();

  // From now on, an eviction spares the victim if it can free constants in the victim's history
  // that only recipes keep (settle.h). Else a small result's recipe could keep a whole batch.
  void shed_before_evicting() { sheds_ = true; }
  void begin_rematerialization(std::int64_t runs_before) { runs_before_ = runs_before; }

  Window cheapest_window(const Pool& pool, Bytes bytes);
  Selector& selector() { return selector_; }
  const Selector& selector() const { return selector_; }
  Bytes locked_bytes() const;
  Bytes waiting_bytes() const;    // Bytes of values that only waiting operators lock.
  Bytes evictable_bytes() const;  // What evict_all() would free in the pool.

 private:
  void evict_victim(Value& victim, Shed shed);
  void evict_together(Op& op);
  Nanos score_clock() const;

  Engine& engine_;
  Executor& executor_;
  ScoreColumns& columns_;
  Needs& needs_;
  Orphans& orphans_;
  Selector selector_;
  std::int64_t runs_before_ = 0;  // Rematerializations before the current one.
  bool sheds_ = false;
};

}  // namespace dtr
