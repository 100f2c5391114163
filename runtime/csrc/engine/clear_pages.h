// Empties pages of the pool, so that they can be released, when the budget shrinks. After evictions
// the tensors may fit the new budget although their pages do not: one small tensor keeps a whole
// page of 2 MiB. So we choose pages on which every block can be evicted, and evict their values.
// Pages whose blocks have the fewest bytes go first. We do not look at scores. Cost: O(blocks +
// pages log pages) a pass. A pass evicts about 64 MiB, so that other threads get the engine's lock.

#pragma once

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/engine/engine.h"

namespace dtr {

// Makes one pass: evicts the values on the emptiest pages, but stops once the rest of the pages fit
// the budget. Returns false if it evicted nothing. Called with the engine's lock held.
bool clear_pages(const Pool& pool, Engine& engine, Bytes budget);

}  // namespace dtr
