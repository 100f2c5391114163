// Empties pages when the budget shrinks. The tensors left after evictions may fit the new budget
// while their pages do not: one small tensor keeps a whole page of 2 MiB. So we choose pages on
// which all blocks may be evicted, those with the fewest bytes first, and evict their values.
// Scores play no part here. Cost: O(blocks + pages log pages) a pass. A pass ends after 64 MiB, so
// that other threads get the lock.

#pragma once

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/engine/engine.h"

namespace dtr {

// Makes one pass: evicts the values on the emptiest pages until the rest fits the budget. Returns
// false if it evicted nothing. Called with the engine's lock held.
bool clear_pages(const Pool& pool, Engine& engine, Bytes budget);

}  // namespace dtr
