// How a request that the pool cannot serve at once gets its memory: who is evicted, and when pages
// are brought together instead. The live runtime and the simulator of its rules share it.

#pragma once

#include "dtr_alloc/csrc/pool.h"
#include "runtime/csrc/engine.h"

namespace dtr {

// Addresses and page size of a scope's arena under `budget`.
Bytes scope_addresses(Bytes budget);

// Null where nothing is left to evict. The engine's lock is held.
Block* allocate_evicting(Pool& pool, Engine& engine, Bytes asked);

}  // namespace dtr
