// Keeps all pools of the process: finds the pool of an address, and holds all locks around fork().
//
// A pool is entered when it is created and removed when its last block is freed, which may be long
// after its handle is gone. A look-up by address is one load from a table.

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"

namespace dtr {
namespace {

// The pool at each kArenaAlignment of the address space: a table of 4 MiB, of which only touched
// pages have memory.
std::array<std::atomic<Pool*>, kVirtualEnd / kArenaAlignment> owners;

struct Registry {
  Mutex mutex;
  std::vector<Pool*> pools DTR_GUARDED_BY(mutex);
};

// Never destroyed: tensors may free their blocks after the destructors of this file's statics.
Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

// Writes `pool` into the slots of an arena's addresses.
void announce(const Arena& arena, Pool* pool) {
  const std::uintptr_t first = arena.base() / kArenaAlignment;
  const std::uintptr_t last = (arena.base() + arena.capacity() - 1) / kArenaAlignment;
  for (std::uintptr_t slot = first; slot <= last; slot++) {
    owners[slot].store(pool, std::memory_order_release);
  }
}

// Not a recursive mutex: that remembers its thread's id, which is another in a forked child.
thread_local int lock_all_depth = 0;

// When the library is loaded, so before anyone else's handlers: see lock_all().
[[maybe_unused]] const int registered =
    pthread_atfork(&Pool::lock_all, &Pool::unlock_all, &Pool::unlock_all);

}  // namespace

Pool::Handle Pool::create(std::unique_ptr<Arena> arena, Bytes budget) {
  if (budget <= 0 || budget > arena->capacity()) {
    throw std::invalid_argument("the budget of a pool must be above 0 and within its arena");
  }
  Pool* pool = new Pool(std::move(arena), budget);
  announce(pool->arena(), pool);
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  all.pools.push_back(pool);
  return Handle(pool);
}

void Pool::retire() {
  {
    const MutexLock lock(mutex_);
    retired_ = true;
    quarantine_ = 0;  // Nobody is left to end it.
    vacate_held();
    if (live_ > 0) return;
  }
  {
    Registry& all = registry();
    const MutexLock lock(all.mutex);
    std::erase(all.pools, this);
  }
  announce(*arena_, nullptr);  // Before the arena gives its addresses up to others.
  delete this;
}

Pool* Pool::owner_of(const void* address) {
  const std::uintptr_t slot = reinterpret_cast<std::uintptr_t>(address) / kArenaAlignment;
  return slot < owners.size() ? owners[slot].load(std::memory_order_acquire) : nullptr;
}

void Pool::lock_all() {
  if (lock_all_depth++ > 0) return;
  Registry& all = registry();
  all.mutex.lock();
  for (Pool* pool : all.pools) pool->mutex_.lock();
}

void Pool::unlock_all() {
  if (--lock_all_depth > 0) return;
  Registry& all = registry();
  for (Pool* pool : all.pools) pool->mutex_.unlock();
  all.mutex.unlock();
}

}  // namespace dtr
