// Finds memory for a request that the pool cannot serve at once: evicts values, or moves pages
// together instead. The live runtime and the simulator of its rules share this code.

#pragma once

#include <functional>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/engine/engine.h"

namespace dtr {

// The size of the address space of a scope with this budget.
Bytes scope_addresses(Bytes budget);

// Chooses a remedy if enough bytes are free within the budget, but not in one hole. We can move
// pages together, at a price measured on this machine (Arena::move_prices; mostly page tables on a
// host, driver calls on a device). Or we can evict neighbours in memory, at the cost of recomputing
// them. Single victims are no remedy: they free more bytes, but no larger hole. Cheap pages always
// move, because a search for neighbours, block by block, costs more than it saves. So this function
// is called only if pages are expensive to move.
//
// Moves have a hidden price, too: they leave holes without pages, so the next requests need moves
// as well. If pages are expensive, a mix of both remedies can cost more than either alone. So we
// evict windows (runs of neighbours), as if pages could not move, until recomputing takes a third
// of the time of first runs. From then on the prices decide. With this rule the published U-Net, at
// half of its peak and 80 us a page, takes less time than if pages always move
// (`python perf/memory/page_prices.py`).
enum class Remedy { kMove, kEvict };
Remedy cheaper_remedy(const Pool& pool, const EngineStats& done, Nanos move,
                      const std::function<Nanos()>& recompute);

// `take` asks the pool for `asked` bytes; `at_last` tells it that nothing is left to evict. Evicts
// until `take` succeeds, or returns null if it cannot. Called with the engine's lock held.
using Take = std::function<Block*(Fit, bool at_last)>;
Block* allocate_evicting(const Pool& pool, Engine& engine, const MovePrices& prices, Bytes asked,
                         const Take& take, bool may_evict);
// The same for another allocator's memory, which has no holes: evicts single victims.
Block* allocate_evicting(Engine& engine, const Take& take, bool may_evict);

}  // namespace dtr
