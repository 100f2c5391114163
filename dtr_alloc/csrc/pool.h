// A pool hands out ranges of one arena and never passes its budget. It does not touch the memory: all bookkeeping is outside,
// so the arena may be on a device.
//
// Sizes are rounded to 512-byte granules. Free neighbours merge at once, so two free blocks are never adjacent. Placement is
// best fit (smallest hole that holds the request, lowest address among equals): one list per size for holes below 64
// granules, a set ordered by (size, offset) above; allocate and free are O(1) for small blocks and O(log holes) for large.
//
// The budget bounds two things, both exactly: bytes in live blocks, and bytes of committed pages. The arena reserves more
// addresses than the budget. Fit::kCommitted only takes a hole that needs no page beyond the budget; Fit::kRemap may take
// pages away from other holes to back this one.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "dtr_alloc/csrc/arena.h"

namespace dtr {

constexpr Bytes kGranule = 512;
constexpr Bytes round_to_granule(Bytes n) { return (n + kGranule - 1) / kGranule * kGranule; }

// One range of the arena, free or live. Blocks form a list in address order that covers the arena without gaps.
struct Block {
  Bytes offset = 0;
  Bytes size = 0;
  Block* previous = nullptr;
  Block* next = nullptr;
  bool free = true;
  void* owner = nullptr;  // The engine's Value that lives here; null where nobody may evict it.
};

enum class Fit { kCommitted, kRemap };

struct PoolStats {
  Bytes budget, live, peak, committed, largest_hole;
  double external_fragmentation;  // 1 - largest hole / free bytes, both within the budget; 0 where nothing is free.
  std::int64_t live_blocks, allocations, frees, failures, remaps;
};

class Pool {
 public:
  // Gives the pool up: it destroys itself when its last block is freed, which may be at once.
  struct Retire {
    void operator()(Pool* pool) const { pool->retire(); }
  };
  using Handle = std::unique_ptr<Pool, Retire>;

  // Throws std::invalid_argument unless 0 < budget <= the arena's capacity.
  static Handle create(std::unique_ptr<Arena> arena, Bytes budget);

  Block* allocate(Bytes size, Fit fit);  // Null where no hole is large enough, or live + size would pass the budget.
  void free(Block* block);
  Block* find(const void* data) const;  // The live block that starts at `data`, or null. O(1).
  void* data(const Block* block) const;
  std::pair<Bytes, Bytes> free_neighbours(const Block* block) const;  // Free bytes directly left and right. O(1).

  Bytes trim();  // Gives the pages of holes back; returns the bytes given back.
  void reset_peak();
  PoolStats stats() const;
  Bytes budget() const;
  Bytes live() const;
  const Arena& arena() const;
  std::vector<Block> snapshot() const;  // All blocks in address order.
  void check() const;                   // Walks everything; throws std::logic_error with a sentence. For tests.

  // The pool whose arena holds `address`, or null. O(1), lock-free; valid while a block of that pool is live.
  static Pool* owner_of(const void* address);

  // All pools' locks, taken and given around fork() so that a child never inherits a lock that nobody will open.
  static void lock_all();
  static void unlock_all();

 private:
  // ...
};

}  // namespace dtr
