#include "runtime/csrc/engine/make_room.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/csrc/engine/held.h"

namespace dtr {
namespace {

using Real = std::chrono::duration<double, std::nano>;  // For shares of a time.

bool evict_window(const Window& window, Engine& engine) {
  std::vector<Held> held;  // With one value another may go.
  for (Value* value : window.values) held.emplace_back(engine, *value);
  for (Value* value : window.values) {
    if (value->candidate != kNowhere) engine.eviction().evict_or_move(*value);
  }
  return !window.values.empty();
}

// Whether to move a page costs more than a tenth of computing as many bytes. By its measured prices
// a host's pages never do; a device's are expected to.
bool pages_are_expensive(const Pool& pool, const EngineStats& done, const MovePrices& prices) {
  constexpr double kShare = 0.1;
  const auto computed = static_cast<double>(pool.stats().allocated);
  const Nanos took = done.base_cost + done.remat_cost;
  const auto page = static_cast<double>(pool.arena().page());
  return took > 0ns && Real(prices.page) * computed > Real(took) * kShare * page;
}

// Null where pages cannot move, or do not make a hole.
Block* take_by_cheaper_remedy(const Pool& pool, Engine& engine, const MovePrices& prices,
                              Bytes asked, const Take& take) {
  const Nanos move = pool.move_price(asked, prices);
  if (move == kCannotMove) return nullptr;
  Eviction& eviction = engine.eviction();
  std::optional<Window> found;
  const auto window = [&]() -> const Window& {
    if (!found) found = eviction.cheapest_window(pool, asked);
    return *found;
  };
  const auto recompute = [&] { return window().values.empty() ? kCannotMove : window().cost; };
  if (cheaper_remedy(pool, engine.stats(), move, recompute) == Remedy::kEvict) {
    evict_window(window(), engine);
  }
  return take(Fit::kRemap, false);
}

}  // namespace

Remedy cheaper_remedy(const Pool& pool, const EngineStats& done, Nanos move,
                      const std::function<Nanos()>& recompute) {
  // A window's search, for each block of the pool: twice what it takes with warm caches (window.h).
  constexpr Nanos kSearchBlock = 10ns;
  // A program that recomputes more of its own time than this chooses the wrong windows.
  constexpr double kTooMuch = 1.0 / 3;

  if (Real(done.remat_cost) <= kTooMuch * Real(done.base_cost)) return Remedy::kEvict;
  const Nanos search = kSearchBlock * pool.stats().live_blocks;
  if (move <= search) return Remedy::kMove;
  return move - search <= recompute() ? Remedy::kMove : Remedy::kEvict;
}

Block* allocate_evicting(const Pool& pool, Engine& engine, const MovePrices& prices, Bytes asked,
                         const Take& take, bool may_evict) {
  Eviction& eviction = engine.eviction();
  const bool windows = engine.heuristic().selection == Selection::kWindow;
  const auto scattered = [&] { return pool.live() + round_to_granule(asked) <= pool.budget(); };
  const auto enough_waits = [&] {
    return pool.live() - eviction.waiting_bytes() + round_to_granule(asked) <= pool.budget();
  };
  const auto cheap = [&] { return !pages_are_expensive(pool, engine.stats(), prices); };
  while (true) {
    const bool moving = may_evict && scattered() && cheap();
    if (Block* block = take(moving ? Fit::kRemap : Fit::kCommitted, false)) return block;
    if (!may_evict) {
      if (engine.let_all_stones_go()) continue;
      return take(Fit::kBeyond, true);
    }
    if (!moving && scattered()) {  // Or `take` gave back what was shed.
      if (cheap()) continue;
      if (Block* block = take_by_cheaper_remedy(pool, engine, prices, asked, take)) return block;
    }
    if (windows && eviction.evict_orphan()) continue;
    if (windows && evict_window(eviction.cheapest_window(pool, asked), engine)) continue;
    if (eviction.evict_one()) continue;
    if (Block* block = take(Fit::kRemap, true)) return block;
    if (!enough_waits() || !eviction.evict_waiting()) return take(Fit::kBeyond, true);
  }
}

Block* allocate_evicting(Engine& engine, const Take& take, bool may_evict) {
  while (true) {
    if (Block* block = take(Fit::kCommitted, false)) return block;
    if (may_evict && (engine.eviction().evict_one() || engine.eviction().evict_waiting())) continue;
    if (may_evict || !engine.let_all_stones_go()) return take(Fit::kBeyond, true);
  }
}

}  // namespace dtr
