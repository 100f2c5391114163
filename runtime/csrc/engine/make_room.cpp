#include "runtime/csrc/engine/make_room.h"

#include <algorithm>

namespace dtr {
namespace {

bool evict_window(const Window& window, Engine& engine) {
  for (Value* value : window.values) engine.evict(*value);
  return !window.values.empty();
}

}  // namespace

// Twice those of the budget, and some, so that a hole can be made of scattered pages (pool.h); no
// more than there can be, which is twice the largest budget.
Bytes scope_addresses(Bytes budget) {
  return std::min(2 * budget + (Bytes{64} << 20), kMaxCapacity);
}

Remedy cheaper_remedy(Nanos move, Nanos search, const std::function<Nanos()>& recompute) {
  // With little memory an evicted value comes back more than once. Chosen on the traces that
  // perf/fragmentation.py runs: counted once, windows over pages of 4 KiB made the published LSTM
  // thrash at 0.35 of its peak; twice and eight times fail in a cell each where four does not.
  constexpr double kTimesRecomputed = 4;
  using Real = std::chrono::duration<double, std::nano>;  // Nanos cannot hold 4 * kCannotMove.
  if (move <= search) return Remedy::kMove;
  const Real evict = kTimesRecomputed * Real(recompute());
  return Real(move - search) <= evict ? Remedy::kMove : Remedy::kEvict;
}

Block* allocate_evicting(const Pool& pool, Engine& engine, const MovePrices& prices, Bytes asked,
                         const Take& take, bool may_evict) {
  // Of a window, for each block of the pool: twice what it takes with warm caches (window.h).
  constexpr Nanos kSearchBlock = 10ns;
  const bool windows = engine.heuristic().selection == Selection::kWindow;
  while (true) {
    if (Block* block = take(Fit::kCommitted)) return block;
    if (!may_evict) return take(Fit::kBeyond);
    const bool scattered = pool.live() + round_to_granule(asked) <= pool.budget();
    const Nanos move = scattered ? pool.move_price(asked, prices) : kCannotMove;
    if (move != kCannotMove) {
      Window window;
      const auto recompute = [&] {
        window = engine.cheapest_window(pool, asked);
        return window.values.empty() ? kCannotMove : window.cost;
      };
      const Nanos search = kSearchBlock * pool.stats().live_blocks;
      if (cheaper_remedy(move, search, recompute) == Remedy::kEvict) evict_window(window, engine);
      if (Block* block = take(Fit::kRemap)) return block;
    }
    if (windows && evict_window(engine.cheapest_window(pool, asked), engine)) continue;
    if (engine.evict_one()) continue;
    if (Block* block = take(Fit::kRemap)) return block;
    if (!engine.evict_waiting()) return take(Fit::kBeyond);
  }
}

}  // namespace dtr
