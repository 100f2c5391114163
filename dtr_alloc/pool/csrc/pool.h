// Hands out blocks of one arena and keeps them within a budget. The pool does not touch the memory:
// all bookkeeping lies outside the arena, so the arena may be on a device.
//
// Sizes are rounded up to granules of 512 bytes, at least one granule. Free neighbours merge at
// once, so two holes (free blocks) are never adjacent. Placement is best fit: a block is cut from
// the low end of the smallest hole that holds it. Among holes of equal size, the pool takes the
// hole freed last if they are below 64 granules, else the hole at the lowest address (holes.h).
// allocate() and free() take O(1) time for small blocks and O(log holes) for large ones, and O(1)
// more for each hole that is skipped for lack of pages.
//
// The budget bounds the bytes in live blocks. Rounded up to a page, it is also the limit on
// committed pages; the arena reserves more addresses. With Fit::kCommitted, a request takes only a
// hole that needs no page beyond this limit. If there is none, Fit::kRemap takes, of all ends of
// holes, the one that lacks the fewest pages. It moves pages of holes there, those of the largest
// hole first. A page that a live block shares with a hole cannot move. So the budget may have bytes
// left when no page can move; only then Fit::kBeyond exceeds the page limit. At that point live
// blocks touch all committed pages, so only free bytes on these pages exceed the budget. Such a
// page is released when the blocks on it are freed. Torch's own allocators hold such free bytes,
// too, and count them as reserved. To refuse a request that fits the budget would be worse.
//
// On a device, work that uses a block may still wait in a stream when the block is freed. The
// stream that a block was allocated on may reuse its bytes at once; any other stream is made to
// wait for an event (streams.h). The pool first looks for a hole that the stream of the request may
// use without waiting. The pool may move pages while work in a stream still uses them at the old
// address (backing.h). A host pool ignores the stream of a request, and nothing waits.
//
// All members are thread-safe: a mutex is held for about ten nanoseconds, longer if pages move.

#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "dtr_alloc/pool/csrc/arena.h"
#include "dtr_alloc/pool/csrc/memory.h"
#include "dtr_alloc/pool/csrc/streams.h"
#include "dtr_alloc/pool/csrc/thread_safety.h"

namespace dtr {

// Keeps blocks of different lifetimes apart. kLow cuts a block from the low end of the lowest hole
// that fits, kHigh from the high end of the highest, in O(blocks) time. On a device, or if pages
// must move, both mostly take the hole that kBestFit takes.
enum class Place { kBestFit, kLow, kHigh };

struct Node;
struct Site;
class Backing;
class Blocks;
class Holes;
class Pages;

class Pool final : public Memory {
 public:
  using Handle = std::unique_ptr<Pool, Memory::Retire>;

  // Throws std::invalid_argument unless 0 < budget <= the arena's capacity.
  static Handle create(std::unique_ptr<Arena> arena, Bytes budget);

  // Returns null if live() + size would exceed the budget, if no hole is large enough, or if no
  // such hole can get its pages in a way that `fit` allows. Throws std::bad_alloc if the machine
  // has no page for a block that the budget allows, std::invalid_argument if size is negative, or
  // the driver's error if a driver call fails. After an exception, pages may have moved.
  Block* allocate(Bytes size, Fit fit, Stream stream, Place place);
  Block* allocate(Bytes size, Fit fit, Stream stream = 0) override {
    return allocate(size, fit, stream, Place::kBestFit);
  }
  void free(Block* block) override;
  Block* find(const void* data) const override;  // O(1).
  // Returns the sizes of the holes directly before and after the block; 0: no hole. O(1).
  std::pair<Bytes, Bytes> free_neighbours(const Block* block) const;
  // Lists every hole: its size, and the owners of the blocks to its left and right.
  struct Beside {
    Bytes free;
    void *left, *right;
  };
  void list_holes(std::vector<Beside>& holes) const;

  // Notes that `stream` uses the block, too: reuse will wait for its work submitted before free().
  void record_stream(Block* block, Stream stream) override;
  void record_every_stream(Block* block) override;  // All known streams may use the block.
  void meet_stream(Stream stream) override;         // Makes a stream known before it uses blocks.
  // Whether the pool knows more than one stream. Lock-free.
  bool many_streams() const override { return many_streams_.load(std::memory_order_relaxed); }
  // gather: `stream` waits for the others' work so far; spread: they wait for its work so far.
  void gather_streams(Stream stream) override;
  void spread_stream(Stream stream) override;
  // Marks a stream in which the runtime copies blocks: record_every_stream, gather_streams and
  // spread_stream no longer include it. Does nothing in a host pool.
  void set_stream_apart(Stream stream);
  void follow_users(const Block* block, Stream stream);  // `stream` waits for the block's users.
  // Makes `stream` the only user of the block. It must already wait for all streams that used it.
  void hand_over(Block* block, Stream stream);
  // Call it before a stream is destroyed: a later stream may get the same handle.
  void retire_stream(Stream stream) override;

  // For graph captures. Captured work runs later, and no event can be queried in a capture. So in
  // begin_quarantine(), the host waits until no work uses a hole. Blocks freed in the quarantine
  // become holes in end_quarantine(). Pairs of calls nest; begin the first before the capture.
  void begin_quarantine();
  void end_quarantine();

  // Bounds live bytes and pages by `limit` from now on; live blocks stay. Throws
  // std::invalid_argument unless 0 <= limit <= largest_budget().
  void set_limit(Bytes limit) override;
  // Raises the budget to the arena's capacity, so that the tensors that outlive a scope fit.
  void lift_budget();

  Bytes trim() override;  // Releases the pages of holes; returns the bytes released.
  void reset_peak() override;
  PoolStats stats() const override;
  Nanos moving() const override;
  Bytes budget() const override { return limit_; }  // The limit that was set last.
  Bytes largest_budget() const override;
  Bytes live() const override;
  const Arena& arena() const { return *arena_; }
  // Counts calls that commit, move or release pages, which take the host's time. Lock-free.
  std::int64_t page_calls() const DTR_UNCHECKED;
  // Returns committed pages as ranges of offsets [begin, end), in order, with gaps between ranges.
  std::vector<std::pair<Bytes, Bytes>> committed_runs() const;
  std::vector<Block> snapshot() const;  // All blocks in address order.
  // Walks over all blocks in address order, to find neighbours whose eviction makes a hole of
  // `bytes`. Calls visit(size, owner) for each block: a hole has a null owner, a live block without
  // an owner has size 0. If few new pages are left, a hole is visited in parts, and parts without
  // pages have size 0. `visit` must not call the pool.
  template <class Visit>
  Visit each_extent(Bytes bytes, Visit visit) const;
  MovePrices move_prices() const;  // As the arena has measured them so far.
  // Returns the cost of moving pages for a request with Fit::kRemap; kCannotMove if it would fail.
  Nanos move_price(Bytes size, const MovePrices& prices) const;
  void check() const override;
  Pool* pool() override { return this; }

  // Returns the pool whose arena holds `address`, or null. O(1) and lock-free. The pointer is valid
  // while a block of that pool is live.
  static Pool* owner_of(const void* address);

  // Take and release the locks of all pools around fork(), so that a child never inherits a lock
  // that no thread will release. Calls nest. The library registers both with pthread_atfork when it
  // loads. Before a fork, handlers registered later run earlier. If you call a pool with a lock of
  // yours held, register that lock's handlers later: then a fork takes your lock first.
  static void lock_all() DTR_UNCHECKED;
  static void unlock_all() DTR_UNCHECKED;

 private:
  Pool(std::unique_ptr<Arena> arena, Bytes budget);
  ~Pool() override;

  void retire() override;

  std::int32_t meet(Stream stream) DTR_REQUIRES(mutex_);
  Node* backed_hole(Bytes size, Place place, std::int32_t user) DTR_REQUIRES(mutex_);
  Node* usable_block(Site site, Bytes size, std::int32_t user, bool remap) DTR_REQUIRES(mutex_);
  Node* carve(Site site, Bytes size) DTR_REQUIRES(mutex_);
  Node* hole_from(Place place, Bytes size) const DTR_REQUIRES(mutex_);
  void give_back(Node* block) DTR_REQUIRES(mutex_);
  Node* merge(Node* block) DTR_REQUIRES(mutex_);
  void unlink(Node* block) DTR_REQUIRES(mutex_);
  void vacate(Node* block) DTR_REQUIRES(mutex_);
  void vacate_held() DTR_REQUIRES(mutex_);
  [[gnu::noinline]] Node* ready_hole(Bytes size, std::int32_t user) DTR_REQUIRES(mutex_);
  void settle_holes() DTR_REQUIRES(mutex_);
  void check_hole(const Block& hole) const DTR_REQUIRES(mutex_);
  void check_live(const Block& block) const DTR_REQUIRES(mutex_);

  mutable Mutex mutex_;

  // Guarded by: nothing: const
  // mutex_ guards what these point to, except the arena's constants, Blocks::find and Pages::calls.
  const std::unique_ptr<Arena> arena_;
  const std::unique_ptr<Blocks> blocks_;
  const std::unique_ptr<Holes> holes_ DTR_POINTS_TO_GUARDED_BY(mutex_);
  const std::unique_ptr<Pages> pages_ DTR_POINTS_TO_GUARDED_BY(mutex_);
  const std::unique_ptr<StreamOrder> order_ DTR_POINTS_TO_GUARDED_BY(mutex_);  // Null: no streams.
  const std::unique_ptr<Backing> backing_ DTR_POINTS_TO_GUARDED_BY(mutex_);

  // Guarded by: nothing: atomic
  // Written with mutex_ held.
  std::atomic<Bytes> limit_;  // The limit set last; at most budget_.
  std::atomic<bool> many_streams_ = false;

  // Guarded by: mutex_
  Bytes budget_ DTR_GUARDED_BY(mutex_);  // What largest_budget() returns.
  Block* first_ DTR_GUARDED_BY(mutex_);  // The block at offset 0.
  Bytes live_ DTR_GUARDED_BY(mutex_) = 0;
  Bytes peak_ DTR_GUARDED_BY(mutex_) = 0;
  Bytes allocated_ DTR_GUARDED_BY(mutex_) = 0;
  std::int64_t peak_blocks_ DTR_GUARDED_BY(mutex_) = 0;
  std::int64_t allocations_ DTR_GUARDED_BY(mutex_) = 0;
  std::int64_t frees_ DTR_GUARDED_BY(mutex_) = 0;
  std::int64_t failures_ DTR_GUARDED_BY(mutex_) = 0;
  bool retired_ DTR_GUARDED_BY(mutex_) = false;
  int quarantine_ DTR_GUARDED_BY(mutex_) = 0;  // Depth of begin_quarantine().
  Bytes quarantined_ DTR_GUARDED_BY(mutex_) = 0;
  std::vector<Node*> held_ DTR_GUARDED_BY(mutex_);  // Blocks freed in a quarantine, in order.
};

}  // namespace dtr
