// How a request that the pool cannot serve at once gets its memory: who is evicted, and when pages
// are brought together instead. The live runtime and the simulator of its rules share it.

#pragma once

#include <functional>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/engine/engine.h"

namespace dtr {

// Addresses of a scope's arena under `budget`.
Bytes scope_addresses(Bytes budget);

// The budget has the bytes and no hole holds them. Two remedies end in a hole: pages are moved
// together, at a price that was measured on this machine (Arena::move_prices; above all page tables
// on a host, calls of the driver on a device), or neighbours are evicted, which costs what it will
// take to recompute them. Evicting single victims is no remedy: they free bytes, of which there are
// enough. Cheap pages always move: to search for the neighbours, block by block, costs more than it
// saves. Only where pages are dear is the cheaper remedy looked for.
//
// Moves have a price that is not on the label: they leave holes without pages behind, so that the
// next requests need moves in turn. Where a page is dear, a few moves make all that follow dearer
// than either remedy alone. Then windows are evicted, as if pages could not move, until the program
// recomputes so much that windows must be wrong for it, and the prices decide after all. The
// published U-Net, at half of its peak and 80 us a page, so takes less time than where pages always
// move (`python perf/memory/page_prices.py`).
enum class Remedy { kMove, kEvict };
Remedy cheaper_remedy(const Pool& pool, const EngineStats& done, Nanos move,
                      const std::function<Nanos()>& recompute);

// `take` asks the pool for `asked` bytes; `at_last` where nothing is left to evict. Null where
// nothing is, or nothing may be. The engine's lock is held.
using Take = std::function<Block*(Fit, bool at_last)>;
Block* allocate_evicting(const Pool& pool, Engine& engine, const MovePrices& prices, Bytes asked,
                         const Take& take, bool may_evict);
// The same where memory is only counted: there are no holes, so single victims are the remedy.
Block* allocate_evicting(Engine& engine, const Take& take, bool may_evict);

}  // namespace dtr
