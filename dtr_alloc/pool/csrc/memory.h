// What a session asks of whoever has the bytes of its tensors: blocks within a budget.
//
// There are two kinds. A pool (pool.h) owns its memory, and knows holes, pages and the order of
// streams. Torch's own allocator keeps its memory, which is then only counted: by us on the host
// (live/machine/guest_memory.h), and by torch itself on a device (live_cuda/native_memory.h). The
// interface is what both can do. Who chooses victims by holes, or moves pages, asks for the pool
// itself, and does without where there is none.
//
// A call costs what a call of the pool costs, and the look-up of the function. data() is asked for
// several times an operator and needs none: a block's address is an offset from one base.

#pragma once

#include <cstdint>
#include <memory>

#include "dtr_alloc/pool/csrc/arena.h"

namespace dtr {

constexpr Bytes kGranule = 512;
constexpr Bytes round_to_granule(Bytes n) { return round_up(n, kGranule); }

// One range of memory. A pool's blocks, free or live, form a list in address order that covers its
// arena without gaps.
struct Block {
  Bytes offset = 0;
  Bytes size = 0;
  Block* previous = nullptr;
  Block* next = nullptr;
  bool free = true;
  bool quarantined = false;  // Freed, and to become a hole when the quarantine ends.
  Fence fence = 0;           // The streams that use or used it.
  void* owner = nullptr;     // Who may be evicted from here (graph/owner.h); null: nobody.
};

// How far a pool goes for its pages (pool.h), and whether torch's device allocator is asked though
// it was found full (live_cuda/native_memory.h). For others all are the same.
enum class Fit { kCommitted, kRemap, kBeyond };

struct PoolStats {
  Bytes budget, live, peak, committed;
  Bytes largest_hole;  // Within the budget: min(bytes of the largest hole, budget - live).
  double external_fragmentation;  // 1 - largest_hole / (budget - live); 0 where nothing is free.
  std::int64_t live_blocks, allocations, frees;
  std::int64_t failures;      // Requests that allocate answered with null.
  std::int64_t remaps;        // Allocations that took pages away from holes.
  Bytes quarantined;          // Freed bytes that are still live until the quarantine ends.
  std::int64_t stream_waits;  // Times that a stream was made to wait for another one's block.
  Bytes allocated;            // Bytes of all blocks ever allocated.
  Bytes peak_committed;       // Since the pool was made or reset_peak, like the next one.
  std::int64_t peak_blocks;
};

class Pool;

class Memory {
 public:
  // Gives the memory up: it destroys itself when its last block is freed, which may be at once.
  struct Retire {
    void operator()(Memory* memory) const { memory->retire(); }
  };
  using Handle = std::unique_ptr<Memory, Retire>;

  // Null where live + size, rounded to granules, would pass the budget, or where a pool has no
  // place for it. Throws std::bad_alloc, and has allocated nothing, where the machine has no memory
  // for a block that the budget allows; std::invalid_argument where size is negative.
  virtual Block* allocate(Bytes size, Fit fit, Stream stream) = 0;
  virtual void free(Block* block) = 0;
  // The live block that starts there, or null. A guest on the host finds none that a session
  // tracks, one on a device no other.
  virtual Block* find(const void* data) const = 0;
  // Counts the block no longer, for good: it lives on as ordinary memory. False where it cannot.
  virtual bool let_go(Block*) { return false; }

  // Whether torch's device allocator has the bytes (live_cuda/native_memory.h). It may take
  // Python's lock, so it is asked, and given memory back, while no lock of ours is held. It knows a
  // block only while a session tracks what lies there: from adopt() to disown().
  virtual bool is_torchs() const { return false; }
  // The live block that starts there, which a session tracks from now on, or null.
  virtual Block* adopt(void* data, Bytes) { return find(data); }
  virtual void disown(Block*) {}  // No session tracks it: whoever has the address frees it.

  void* data(const Block* block) const { return reinterpret_cast<void*>(base_ + block->offset); }

  virtual Bytes budget() const = 0;
  virtual Bytes largest_budget() const = 0;  // That set_limit takes.
  virtual Bytes live() const = 0;            // An upper bound while other threads allocate.
  // The same, but waits for such threads while it is above `enough`, a second at most.
  virtual Bytes settled_live(Bytes /*enough*/) const { return live(); }
  // What a block of that size counts, at most.
  virtual Bytes charge(Bytes size) const { return round_to_granule(size); }
  virtual PoolStats stats() const = 0;
  virtual Nanos moving() const { return 0ns; }  // What moving pages has taken the host so far.
  virtual void reset_peak() = 0;
  virtual void set_limit(Bytes limit) = 0;  // The budget from now on; what is live already stays.
  virtual Bytes trim() = 0;  // Gives free memory to the system; returns the bytes that a pool gave.
  virtual void check() const = 0;  // Walks everything; throws std::logic_error. For tests.

  // Of a device (pool.h). Memory whose work is done when a call returns has nothing to order.
  virtual void record_stream(Block*, Stream) {}
  virtual void record_every_stream(Block*) {}
  virtual void meet_stream(Stream) {}
  virtual bool many_streams() const { return false; }
  virtual void gather_streams(Stream) {}
  virtual void spread_stream(Stream) {}
  virtual void retire_stream(Stream) {}

  virtual Pool* pool() { return nullptr; }  // This, where it is one.

 protected:
  explicit Memory(std::uintptr_t base) : base_(base) {}
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

 private:
  virtual void retire() = 0;

  const std::uintptr_t base_;
};

}  // namespace dtr
