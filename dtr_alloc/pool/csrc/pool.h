// Hands out blocks of one arena and keeps them within a budget. The pool does not touch the memory:
// all bookkeeping lies outside the arena, so the arena may be on a device.
//
// Sizes are rounded up to granules of 512 bytes, at least one. Free neighbours merge at once, so
// two free blocks are never adjacent. Placement is best fit, at the low end of the smallest hole
// that holds the request. Among holes of equal size, the pool takes the hole freed last if they are
// below 64 granules, else the hole at the lowest address (holes.h). allocate and free are O(1) for
// small blocks and O(log holes) for large ones, plus the holes skipped for lack of pages.
//
// The budget always bounds the bytes in live blocks. Rounded up to a page, the budget also bounds
// the committed pages, unless a request would fail only because of that. The arena reserves more
// addresses than the budget. Fit::kCommitted takes only a hole that needs no page beyond the
// budget. If there is none, Fit::kRemap takes the hole end that lacks the fewest pages, and moves
// pages there from other holes, largest first. A page that a live block shares with a hole cannot
// move, so the budget may have bytes left but no page. Fit::kBeyond then exceeds the limit on
// pages. By then live blocks touch all committed pages, so only free parts of such pages lie beyond
// the budget; a page is released when the blocks on it are freed. Torch's own allocators hold such
// parts, too, and count them as reserved. To refuse a request that fits the budget would be worse.
//
// On a device, work that uses a block may still wait in a stream when the block is freed. The
// stream that a block was allocated on may reuse its bytes at once; any other stream is made to
// wait for an event (streams.h). The pool first takes holes that need no waiting. It may move pages
// while work in a stream still uses them at the old address (backing.h). A host pool ignores the
// stream of a request, and nothing waits.
//
// Every member is thread-safe. Each pool has one mutex, which is held for about ten nanoseconds, or
// longer while pages move.

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

// Which hole a block is cut from, and at which end. kLow and kHigh take the first hole that is
// large enough, from the low or high end of the arena, so that blocks of different lifetimes can be
// kept apart; they cost O(blocks). If pages must move, all three take the same hole.
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

  // Returns null if live + size would exceed the budget, if no hole is large enough, or if no such
  // hole can get its pages (except with Fit::kBeyond). Throws std::bad_alloc if the machine has no
  // page for a block that the budget allows, std::invalid_argument if size is negative, or a
  // driver's error. Pages may have moved then.
  Block* allocate(Bytes size, Fit fit, Stream stream, Place place);
  Block* allocate(Bytes size, Fit fit, Stream stream = 0) override {
    return allocate(size, fit, stream, Place::kBestFit);
  }
  void free(Block* block) override;
  Block* find(const void* data) const override;  // O(1).
  // Free bytes directly before and after the block. O(1).
  std::pair<Bytes, Bytes> free_neighbours(const Block* block) const;
  // Lists every hole: its size, and the owners of the blocks beside it.
  struct Beside {
    Bytes free;
    void *left, *right;
  };
  void list_holes(std::vector<Beside>& holes) const;

  // Notes that another stream uses the block: reuse will wait for this stream's work up to free().
  void record_stream(Block* block, Stream stream) override;
  void record_every_stream(Block* block) override;  // All known streams may use it.
  void meet_stream(Stream stream) override;         // Makes a stream known before it uses blocks.
  // Whether the pool knows more than one stream. Lock-free.
  bool many_streams() const override { return many_streams_.load(std::memory_order_relaxed); }
  // gather: `stream` waits for all other streams' work so far; spread: they wait for `stream`.
  void gather_streams(Stream stream) override;
  void spread_stream(Stream stream) override;
  // Sets apart a stream that copies blocks for the runtime: record_every_stream, gather_streams and
  // spread_stream then leave the stream out. Does nothing in a host pool.
  void set_stream_apart(Stream stream);
  void follow_users(const Block* block, Stream stream);  // `stream` waits for the users' work.
  // Makes `stream`, which already waits for all users of the block, its only user from now on.
  void hand_over(Block* block, Stream stream);
  // Call it before a stream is destroyed: a later stream may get the same handle.
  void retire_stream(Stream stream) override;

  // For graph capture: captured work runs later, and events cannot be queried meanwhile. So in
  // begin_quarantine() the host waits until no work uses a hole, and blocks freed before the end
  // become holes at the end. Calls nest; make the first call before the capture.
  void begin_quarantine();
  void end_quarantine();

  // Bounds live bytes and pages by `limit` from now on; live blocks stay. Throws
  // std::invalid_argument unless 0 <= limit <= largest_budget().
  void set_limit(Bytes limit) override;
  // Raises the budget to the arena's capacity, so that all tensors that outlive a scope have room.
  void lift_budget();

  Bytes trim() override;  // Releases the pages of holes; returns the bytes released.
  void reset_peak() override;
  PoolStats stats() const override;
  Nanos moving() const override;
  Bytes budget() const override { return limit_; }  // Or a lower limit that was set.
  Bytes largest_budget() const override;
  Bytes live() const override;
  const Arena& arena() const { return *arena_; }
  // How often pages were committed, moved or released, which takes the host's time. Lock-free.
  std::int64_t page_calls() const DTR_UNCHECKED;
  // Committed pages as ranges of offsets [begin, end), in order, with gaps between.
  std::vector<std::pair<Bytes, Bytes>> committed_runs() const;
  std::vector<Block> snapshot() const;  // All blocks in address order.
  // Walks in address order over the memory in which evictions could make a hole of `bytes`. Calls
  // `visit(bytes, owner)` for each block or part of a hole: free bytes have a null owner, and 0
  // bytes mark blocks or pages that cannot be used. `visit` must not call the pool.
  template <class Visit>
  Visit each_extent(Bytes bytes, Visit visit) const;
  MovePrices move_prices() const;  // The arena's prices, as measured so far.
  // What Fit::kRemap would cost for this size at these prices; kCannotMove if it would fail.
  Nanos move_price(Bytes size, const MovePrices& prices) const;
  void check() const override;
  Pool* pool() override { return this; }

  // The pool whose arena holds `address`, or null. O(1), lock-free; valid while a block of that
  // pool is live.
  static Pool* owner_of(const void* address);

  // Take and release the locks of all pools around fork(), so that a child never inherits a lock
  // that no thread will release; calls nest. The library registers them with pthread_atfork when it
  // loads. Handlers registered later run earlier before a fork. So a lock that is held while a pool
  // is called needs handlers of its own, which then take it before the pools' locks, as they must.
  static void lock_all() DTR_UNCHECKED;
  static void unlock_all() DTR_UNCHECKED;

 private:
  Pool(std::unique_ptr<Arena> arena, Bytes budget);
  ~Pool() override;

  void retire() override;

  // The code that only devices need is in pool_streams.cpp.
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
  // mutex_ guards what these point to, except an arena's constants, Blocks::find and Pages::calls.
  const std::unique_ptr<Arena> arena_;
  const std::unique_ptr<Blocks> blocks_;
  const std::unique_ptr<Holes> holes_ DTR_POINTS_TO_GUARDED_BY(mutex_);
  const std::unique_ptr<Pages> pages_ DTR_POINTS_TO_GUARDED_BY(mutex_);
  const std::unique_ptr<StreamOrder> order_ DTR_POINTS_TO_GUARDED_BY(mutex_);  // Null: no streams.
  const std::unique_ptr<Backing> backing_ DTR_POINTS_TO_GUARDED_BY(mutex_);

  // Guarded by: nothing: atomic
  // Written with mutex_ held.
  std::atomic<Bytes> limit_;  // At most the budget.
  std::atomic<bool> many_streams_ = false;

  // Guarded by: mutex_
  Bytes budget_ DTR_GUARDED_BY(mutex_);
  Block* first_ DTR_GUARDED_BY(mutex_);  // The block at offset 0.
  Bytes live_ DTR_GUARDED_BY(mutex_) = 0;
  Bytes peak_ DTR_GUARDED_BY(mutex_) = 0;
  Bytes allocated_ DTR_GUARDED_BY(mutex_) = 0;
  std::int64_t peak_blocks_ DTR_GUARDED_BY(mutex_) = 0;
  std::int64_t allocations_ DTR_GUARDED_BY(mutex_) = 0;
  std::int64_t frees_ DTR_GUARDED_BY(mutex_) = 0;
  std::int64_t failures_ DTR_GUARDED_BY(mutex_) = 0;
  bool retired_ DTR_GUARDED_BY(mutex_) = false;
  int quarantine_ DTR_GUARDED_BY(mutex_) = 0;  // Nesting depth.
  Bytes quarantined_ DTR_GUARDED_BY(mutex_) = 0;
  std::vector<Node*> held_ DTR_GUARDED_BY(mutex_);  // Freed in the quarantine, in order.
};

}  // namespace dtr
