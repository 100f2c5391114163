// Empties pages when the budget shrinks. Bytes within the new budget can lie on more pages than it
// allows: a page is given back as a whole, and one small tensor keeps a page of 2 MiB. So pages on
// which all blocks may be evicted are emptied, those with the fewest bytes first. Scores play no
// part: a value is evicted to free its page. Cost: O(blocks + pages log pages) a pass; a pass ends
// after 64 MiB, so that other threads get the lock.

#pragma once

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/engine/engine.h"

namespace dtr {

// One pass: evicts the values on the emptiest pages until the other pages fit the budget. Returns
// false if it evicted nothing. Called with the engine's lock held.
bool clear_pages(const Pool& pool, Engine& engine, Bytes budget);

}  // namespace dtr
