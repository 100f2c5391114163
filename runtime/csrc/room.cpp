#include "runtime/csrc/room.h"

#include "runtime/csrc/window.h"

namespace dtr {
namespace {

// Free bytes without a hole that holds the request: either another victim happens to make one, or
// pages are brought together, which costs up to 3 us a page. Below kMovesWell a few victims are the
// cheaper try; above it the pool moves long runs of pages, which costs next to nothing
// (host_arena.cpp).
Block* evict_one_by_one(const Pool& pool, Engine& engine, Bytes asked, const Take& take,
                        bool may_evict) {
  constexpr Bytes kMovesWell = Bytes{256} << 10;
  constexpr int kPatience = 3;
  int fruitless = 0;
  while (true) {
    if (Block* block = take(Fit::kCommitted)) return block;
    bool scattered = pool.live() + round_to_granule(asked) <= pool.budget();
    if (scattered && (asked > kMovesWell || fruitless++ == kPatience)) {
      if (Block* block = take(Fit::kRemap)) return block;
    }
    if (may_evict && engine.evict_one()) continue;
    if (Block* block = take(Fit::kRemap)) return block;
    if (!may_evict || !engine.evict_waiting()) return nullptr;
  }
}

}  // namespace

// Twice those of the budget, and some, so that a hole can be made of scattered pages (pool.h).
Bytes scope_addresses(Bytes budget) { return 2 * budget + (Bytes{64} << 20); }

Block* allocate_evicting(const Pool& pool, Engine& engine, Bytes asked, const Take& take,
                         bool may_evict) {
  if (may_evict && engine.heuristic().selection == Selection::kWindow) {
    Window window = cheapest_window(pool, engine, asked);
    for (Value* value : window.values) engine.evict(*value);
    if (!window.values.empty()) {
      if (Block* block = take(Fit::kCommitted)) return block;
    }
  }
  return evict_one_by_one(pool, engine, asked, take, may_evict);
}

}  // namespace dtr
