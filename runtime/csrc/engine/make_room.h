// Finds memory for a request that the pool cannot serve at once: evicts values, or moves pages
// together instead. The live runtime and the simulator of its rules share this code.

#pragma once

#include <functional>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/engine/engine.h"

namespace dtr {

// The size of a scope's address space under `budget`.
Bytes scope_addresses(Bytes budget);

// Chooses a remedy if enough bytes are free within the budget, but not in one hole. Pages can be
// moved together, at a price that was measured on this machine (Arena::move_prices; mostly page
// tables on a host, driver calls on a device); or neighbours in memory can be evicted, at the cost
// of recomputing them. Evicting single victims is no remedy: it frees bytes, of which there are
// enough. Cheap pages always move, because the search for neighbours, block by block, costs more
// than it saves. So this function is called only if pages are expensive to move.
//
// Moves have a hidden price, too: they leave holes without pages, so that the next requests need
// moves in turn. With expensive pages, a few moves can make both remedies cost more than either
// alone. So windows (runs of neighbours) are evicted, as if pages could not move, until the program
// spends so much time recomputing that windows must be wrong for it; then the prices decide. So the
// published U-Net, at half of its peak and 80 us a page, takes less time than if pages always move
// (`python perf/memory/page_prices.py`).
enum class Remedy { kMove, kEvict };
Remedy cheaper_remedy(const Pool& pool, const EngineStats& done, Nanos move,
                      const std::function<Nanos()>& recompute);

// Evicts until `take` succeeds, which asks the pool for `asked` bytes (`at_last`: nothing is left
// to evict). Returns null if it cannot succeed. Called with the engine's lock held.
using Take = std::function<Block*(Fit, bool at_last)>;
Block* allocate_evicting(const Pool& pool, Engine& engine, const MovePrices& prices, Bytes asked,
                         const Take& take, bool may_evict);
// The same for memory that is only counted: it has no holes, so single victims suffice.
Block* allocate_evicting(Engine& engine, const Take& take, bool may_evict);

}  // namespace dtr
