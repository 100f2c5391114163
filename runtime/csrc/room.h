// How a request that the pool cannot serve at once gets its memory: who is evicted, and when pages
// are brought together instead. The live runtime and the simulator of its rules share it.

#pragma once

#include <functional>

#include "dtr_alloc/csrc/pool.h"
#include "runtime/csrc/engine.h"

namespace dtr {

// Addresses and page size of a scope's arena under `budget`.
Bytes scope_addresses(Bytes budget);

// `take` asks the pool for `asked` bytes. Null where nothing is left to evict, or nothing may be.
// The engine's lock is held.
using Take = std::function<Block*(Fit)>;
Block* allocate_evicting(const Pool& pool, Engine& engine, Bytes asked, const Take& take,
                         bool may_evict);

}  // namespace dtr
