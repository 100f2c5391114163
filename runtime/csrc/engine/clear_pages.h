// Bytes below a smaller budget can lie on more pages than it has: a page goes back whole, and where
// pages have 2 MiB, one small tensor keeps each. So pages are emptied, those with the fewest bytes
// first, as far as all on a page may be evicted. Which values go is not a question of their score:
// what counts is that a page goes with them. O(blocks + pages log pages) for each pass; a pass ends
// after 64 MiB, so that other threads get the lock.

#pragma once

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/engine/engine.h"

namespace dtr {

// One pass: evicts what lies on the emptiest pages, until those that are left fit the budget. False
// where nothing went. The engine's lock is held.
bool clear_pages(const Pool& pool, Engine& engine, Bytes budget);

}  // namespace dtr
