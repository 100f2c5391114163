// Finds memory for a request that the pool cannot serve at once: evicts values, or moves free pages
// to adjacent addresses. The live runtime and its simulator share this code.

#pragma once

#include <functional>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/engine/engine.h"

namespace dtr {

// Chooses a remedy if enough bytes are free within the budget, but not in one hole. We can move
// free pages to adjacent addresses, at a price measured on this machine (Arena::move_prices; mostly
// the time for page tables on a host, and for driver calls on a device). Or we can evict values
// that lie side by side in memory, at the cost of recomputing them. Evicting values one by one
// frees more bytes, but seldom makes a larger hole. If pages are cheap to move, we always move
// them, because a search for values side by side would cost more than it saves. So this function is
// called only if pages are expensive to move.
//
// Moves have a hidden price, too: they leave holes without pages, so the next requests need moves
// as well. If pages are expensive, using both remedies can cost more than using either alone. So we
// first only evict windows (values side by side), until recomputations have taken a third of the
// time of operators' first runs. From then on we take the cheaper remedy each time. By this rule
// the U-Net of the paper's logs, with half of its peak as budget and 80 us a page, takes less time
// than if pages always move (`python perf/memory/page_prices.py`).
enum class Remedy { kMove, kEvict };
Remedy cheaper_remedy(const Pool& pool, const EngineStats& done, Nanos move,
                      const std::function<Nanos()>& recompute);

// Evicts values until `take`, which asks the pool for `asked` bytes, returns a block. `at_last`
// tells `take` that no unlocked value is left that may be evicted. Returns null if no eviction
// helps. Without `may_evict`, frees only stepping stones. Hold the engine's lock.
using Take = std::function<Block*(Fit, bool at_last)>;
Block* allocate_evicting(const Pool& pool, Engine& engine, const MovePrices& prices, Bytes asked,
                         const Take& take, bool may_evict);
// The same for memory of another allocator, whose holes we cannot see: evicts values one by one.
Block* allocate_evicting(Engine& engine, const Take& take, bool may_evict);

}  // namespace dtr
