// Defines Memory, which gives a session blocks for its tensors within a budget.
//
// There are two kinds. A pool (pool.h) owns its memory, and manages holes, pages and the order of
// streams. In the other kind, torch's own allocator owns the memory, and a Memory only bounds the
// live bytes. On the host we count these (live/machine/guest_memory.h), on a device torch counts
// them (live_cuda/native_memory.h). Memory has the members that both kinds support. To choose
// victims beside holes, or to move pages, a session needs the pool that pool() returns.
//
// data() is not virtual, as it runs several times per operator: it adds a base to an offset.

#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "dtr_alloc/pool/csrc/arena.h"

namespace dtr {

constexpr Bytes kGranule = 512;
constexpr Bytes round_to_granule(Bytes n) { return round_up(n, kGranule); }

// One range of memory. The blocks of a pool, free and live, form a list in address order, which
// covers the pool's arena without gaps.
struct Block {
  Bytes offset = 0;
  Bytes size = 0;
  Block* previous = nullptr;
  Block* next = nullptr;
  bool free = true;
  bool quarantined = false;  // Freed in a graph capture; becomes a hole after it.
  Fence fence = 0;           // The streams that use or used the block (streams.h).
  void* owner = nullptr;     // The evictable value in the block (graph/owner.h), or null.
};

// A pool's block may get new pages within the limit (kCommitted), also pages of holes (kRemap),
// also new ones beyond the limit (kBeyond; pool.h). In torch's device memory, only kBeyond may
// exceed the cap that refusals set (live_cuda/native_memory.h). Torch's host memory ignores `fit`.
enum class Fit { kCommitted, kRemap, kBeyond };

struct PoolStats {
  Bytes budget, live, peak, committed;
  Bytes largest_hole;             // min(bytes of the largest hole, budget - live).
  double external_fragmentation;  // 1 - largest_hole / (budget - live); 0 if budget <= live.
  std::int64_t live_blocks, allocations, frees;
  std::int64_t failures;      // Requests for which allocate returned null.
  std::int64_t remaps;        // Allocations for which pages of holes moved.
  Bytes quarantined;          // Bytes freed in a graph capture; they count as live until its end.
  std::int64_t stream_waits;  // How often a stream was made to wait for another stream.
  Bytes allocated;            // Bytes of all blocks ever allocated.
  Bytes peak_committed;       // Like the other peaks, counted since reset_peak().
  std::int64_t peak_blocks;
};

// Is told of each block that enters or leaves live(), in the order in which live() changes. Called
// with the memory's mutex held, so it must not call the memory.
class BlockWatcher {
 public:
  virtual ~BlockWatcher() = default;
  virtual void allocated(const void* data, Bytes size) = 0;
  virtual void freed(const void* data, Bytes size) = 0;
};

class Pool;

class Memory {
 public:
  // Releases a Memory: it destroys itself when its last block is freed, or now if it has none.
  struct Retire {
    void operator()(Memory* memory) const { memory->retire(); }
  };
  using Handle = std::unique_ptr<Memory, Retire>;

  // Call it before the first block is allocated. Torch's device memory never calls the watcher.
  void watch(std::shared_ptr<BlockWatcher> watcher) { watcher_ = std::move(watcher); }

  // Returns null if live() + size, rounded to granules, would exceed the budget, or if a pool has
  // no hole for the block. Throws std::bad_alloc and allocates nothing if the machine has no memory
  // for a block that the budget allows. Throws std::invalid_argument if size is negative.
  virtual Block* allocate(Bytes size, Fit fit, Stream stream) = 0;
  virtual void free(Block* block) = 0;
  // Returns the live block that starts at `data`, or null. Torch's host memory does not find a
  // block that a session tracks: the session finds it by its value. Torch's device memory finds
  // only such blocks, since torch does not tell us when it frees others.
  virtual Block* find(const void* data) const = 0;
  // Stops counting the block in live() for good. Returns false except in torch's host memory.
  virtual bool let_go(Block*) { return false; }

  // Whether this is memory of torch's device allocator (live_cuda/native_memory.h). That allocator
  // may take Python's lock, so we call it only while we hold no lock of ours. In this memory, a
  // Block exists only from adopt() to disown(), while a session tracks the tensor in it.
  virtual bool is_torchs() const { return false; }
  // Returns the live block that starts at `data`, or null. A session tracks its tensor from now on.
  virtual Block* adopt(void* data, Bytes) { return find(data); }
  virtual void disown(Block*) {}  // Ends tracking: now the tensor's deleter frees the block.

  void* data(const Block* block) const { return reinterpret_cast<void*>(base_ + block->offset); }

  virtual Bytes budget() const = 0;
  virtual Bytes largest_budget() const = 0;  // The largest limit that set_limit() takes.
  virtual Bytes live() const = 0;            // Perhaps too high while other threads allocate.
  // Returns live(). If it exceeds `enough`, waits up to a second for other threads' requests first.
  virtual Bytes settled_live(Bytes /*enough*/) const { return live(); }
  // Returns the most bytes that a block of `size` bytes may add to live().
  virtual Bytes charge(Bytes size) const { return round_to_granule(size); }
  virtual PoolStats stats() const = 0;
  virtual Nanos moving() const { return 0ns; }  // The host's time for moving pages so far.
  virtual void reset_peak() = 0;
  virtual void set_limit(Bytes limit) = 0;  // Sets budget(); live blocks stay.
  virtual Bytes trim() = 0;  // Gives free memory to the system; returns the bytes, 0 if unknown.
  virtual void check() const = 0;  // For tests: throws std::logic_error if an invariant is broken.

  // These are for a device's streams (pool.h). On the host, which has no streams, they do nothing.
  virtual void record_stream(Block*, Stream) {}
  virtual void record_every_stream(Block*) {}
  virtual void meet_stream(Stream) {}
  virtual bool many_streams() const { return false; }
  virtual void gather_streams(Stream) {}
  virtual void spread_stream(Stream) {}
  virtual void retire_stream(Stream) {}

  virtual Pool* pool() { return nullptr; }  // Returns this object if it is a pool, else null.

 protected:
  explicit Memory(std::uintptr_t base) : base_(base) {}
  virtual ~Memory() = default;
  void tell_allocated(const Block& block) const {
    if (watcher_) [[unlikely]]
      watcher_->allocated(data(&block), block.size);
  }
  void tell_freed(const Block& block) const {
    if (watcher_) [[unlikely]]
      watcher_->freed(data(&block), block.size);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

 private:
  virtual void retire() = 0;

  const std::uintptr_t base_;
  std::shared_ptr<BlockWatcher> watcher_;
};

}  // namespace dtr
