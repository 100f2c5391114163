// Gives a session blocks for its tensors within a budget: the interface to all kinds of memory.
//
// There are two kinds. A pool (pool.h) owns its memory, and knows holes, pages and the order of
// streams. In the other kind, torch's own allocator keeps the memory, and live bytes are only
// counted: by us on the host (live/machine/guest_memory.h), by torch on a device
// (live_cuda/native_memory.h). The interface has what both kinds can do. Choosing victims by holes
// and moving pages need a pool().
//
// A call through the interface adds one virtual call. data(), which runs several times an operator,
// is not virtual: a block's address is an offset from one base.

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
  bool quarantined = false;  // Freed; becomes a hole when the quarantine ends.
  Fence fence = 0;           // The streams that use or used it (streams.h).
  void* owner = nullptr;     // The value to evict from here (graph/owner.h), or null.
};

// How far a pool goes to get pages (pool.h). With kBeyond, torch's device allocator is asked even
// if it was found full (live_cuda/native_memory.h). Other memory ignores `fit`.
enum class Fit { kCommitted, kRemap, kBeyond };

struct PoolStats {
  Bytes budget, live, peak, committed;
  Bytes largest_hole;  // Within the budget: min(bytes of the largest hole, budget - live).
  double external_fragmentation;  // 1 - largest_hole / (budget - live); 0 if nothing is free.
  std::int64_t live_blocks, allocations, frees;
  std::int64_t failures;      // Requests for which allocate returned null.
  std::int64_t remaps;        // Allocations that took pages away from holes.
  Bytes quarantined;          // Freed bytes that count as live until the quarantine ends.
  std::int64_t stream_waits;  // How often a stream had to wait for another stream's block.
  Bytes allocated;            // Bytes of all blocks ever allocated.
  Bytes peak_committed;       // All peaks count from the last reset_peak on.
  std::int64_t peak_blocks;
};

class Pool;

class Memory {
 public:
  // Releases the object: it destroys itself once its last block is freed, which may be at once.
  struct Retire {
    void operator()(Memory* memory) const { memory->retire(); }
  };
  using Handle = std::unique_ptr<Memory, Retire>;

  // Returns null if live + size, rounded to granules, would exceed the budget, or if a pool has no
  // place for the block. Throws std::bad_alloc, with nothing allocated, if the machine has no
  // memory for a block that the budget allows, and std::invalid_argument if size is negative.
  virtual Block* allocate(Bytes size, Fit fit, Stream stream) = 0;
  virtual void free(Block* block) = 0;
  // The live block that starts at `data`, or null. In torch's host memory, finds only blocks that
  // no session tracks; in torch's device memory, only blocks that a session tracks.
  virtual Block* find(const void* data) const = 0;
  // Stops counting the block for good: it lives on as ordinary memory. False if this is impossible.
  virtual bool let_go(Block*) { return false; }

  // Whether torch's device allocator has the bytes (live_cuda/native_memory.h). That allocator may
  // take Python's lock, so we call it only while no lock of ours is held. In such memory, a Block
  // exists only from adopt() to disown(), while a session tracks the tensor in it.
  virtual bool is_torchs() const { return false; }
  // Returns the live block that starts at `data`, which a session tracks from now on, or null.
  virtual Block* adopt(void* data, Bytes) { return find(data); }
  virtual void disown(Block*) {}  // Ends tracking: the address's holder frees the block.

  void* data(const Block* block) const { return reinterpret_cast<void*>(base_ + block->offset); }

  virtual Bytes budget() const = 0;
  virtual Bytes largest_budget() const = 0;  // The largest that set_limit takes.
  virtual Bytes live() const = 0;            // An upper bound while other threads allocate.
  // Returns live(); above `enough`, first waits up to a second for requests of other threads.
  virtual Bytes settled_live(Bytes /*enough*/) const { return live(); }
  // The most bytes that a block of this size adds to live().
  virtual Bytes charge(Bytes size) const { return round_to_granule(size); }
  virtual PoolStats stats() const = 0;
  virtual Nanos moving() const { return 0ns; }  // The host's time for moving pages so far.
  virtual void reset_peak() = 0;
  virtual void set_limit(Bytes limit) = 0;  // The budget from now on; live blocks stay.
  virtual Bytes trim() = 0;  // Gives free memory to the system; returns the bytes that a pool gave.
  virtual void check() const = 0;  // Throws std::logic_error if inconsistent. For tests.

  // For a device's streams (pool.h). Host memory has none: its work is done when a call returns.
  virtual void record_stream(Block*, Stream) {}
  virtual void record_every_stream(Block*) {}
  virtual void meet_stream(Stream) {}
  virtual bool many_streams() const { return false; }
  virtual void gather_streams(Stream) {}
  virtual void spread_stream(Stream) {}
  virtual void retire_stream(Stream) {}

  virtual Pool* pool() { return nullptr; }  // This object, if it is a pool.

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
