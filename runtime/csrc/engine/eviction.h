// Which values leave memory to make room, and how: the victim is evicted, moved outside of memory
// where that costs less than to recompute it, or what was kept for its recipe alone goes instead.
// The selector (policy/selector.h) has the score; orphans go before all that has one.

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

// The engine's lock guards it.
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

  // The value of least score, or what is shed instead of it; false where nothing may go.
  enum class Shed { kBehindVictim, kNothing };
  bool evict_one(Shed shed = Shed::kBehindVictim);
  bool evict_orphan();   // What goes before all; false where there is none.
  bool evict_waiting();  // Among what only waiting recomputations hold; false where none may go.
  void evict_all();
  // Evicts, but where that costs no more than to recompute the value, it goes outside of memory,
  // and its recipe is forgotten. Others that the program has let go may go with the recipe.
  void evict_or_move(Value& value);
  void move_all();

  // From now on what is kept for a victim's recipe alone goes instead of the victim (settle.h): a
  // small result must not go, and leave a batch for its recipe.
  void shed_before_evicting() { sheds_ = true; }
  void begin_rematerialization(std::int64_t runs_before) { runs_before_ = runs_before; }

  Window cheapest_window(const Pool& pool, Bytes bytes);
  Selector& selector() { return selector_; }
  const Selector& selector() const { return selector_; }
  Bytes locked_bytes() const;
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
  std::int64_t runs_before_ = 0;  // Rematerializations when the one under way began.
  bool sheds_ = false;
};

}  // namespace dtr
