// A pool hands out ranges of one arena and never passes its budget. It does not touch the memory:
// all bookkeeping is outside, so the arena may be on a device.
//
// Sizes are rounded to 512-byte granules, and 0 to one. Free neighbours merge at once, so two free
// blocks are never adjacent. Placement is best fit, at the low end of the smallest hole that holds
// the request. Among equal holes: below 64 granules the one freed last, from 64 on the one of the
// lowest address (holes.h). allocate and free are O(1) for small blocks and O(log holes) for large,
// plus the holes that are passed over for want of pages.
//
// The budget bounds bytes in live blocks, always, and bytes of committed pages (the budget rounded
// up to a page) for as long as that refuses nobody. The arena reserves more addresses than the
// budget. Fit::kCommitted only takes a hole that needs no page beyond the budget; Fit::kRemap,
// where there is none, takes the end of a hole that lacks the fewest pages, and takes those away
// from other holes, largest first. A page that a live block shares with a hole can do neither, so
// bytes may be left that no page is allowed for; Fit::kBeyond then passes the limit on pages. Every
// page is by then one that a live block touches: what lies beyond the budget are the free ends of
// such pages, on any arena, and it is given back as the blocks on them are freed. Torch's own
// allocators hold such ends too, and count them as reserved (here: committed); to turn down a
// request that the budget has bytes for would be worse.
//
// On a device, work that uses a block may still wait in a stream when the block is freed. A block
// is allocated on a stream; that stream may use its bytes again at once, and any other is made to
// wait by an event (streams.h). A hole that needs no waiting is taken before one that does. Pages
// are taken from holes while their streams may still use them where they are (backing.h). Host
// pools know no streams: every stream is as good as 0, and nothing waits.
//
// Every member is thread-safe. One mutex a pool, held for some ten nanoseconds, longer only while
// pages change hands.

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

// Which hole a block is cut from, and at which end. kLow and kHigh take the first that holds it
// from that end of the arena, which keeps blocks apart whose fates differ; they cost O(blocks).
// Pages are moved to the best fit all the same.
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

  // Null where no hole is large enough (or, but for Fit::kBeyond, may have the pages), or
  // live + size would pass the budget. Throws
  // std::bad_alloc, and has allocated nothing, where the machine has no page for a block that the
  // budget allows; std::invalid_argument where size is negative; what the device's driver throws.
  // The pool is then as it was, but for pages that have moved.
  Block* allocate(Bytes size, Fit fit, Stream stream, Place place);
  Block* allocate(Bytes size, Fit fit, Stream stream = 0) override {
    return allocate(size, fit, stream, Place::kBestFit);
  }
  void free(Block* block) override;
  Block* find(const void* data) const override;  // O(1).
  // Free bytes directly left and right. O(1).
  std::pair<Bytes, Bytes> free_neighbours(const Block* block) const;
  // The same of all blocks: for each hole, its size and the owners of the blocks beside it.
  struct Beside {
    Bytes free;
    void *left, *right;
  };
  void list_holes(std::vector<Beside>& holes) const;

  // Another stream uses the block as well: once freed, it waits for that one's work up to then.
  void record_stream(Block* block, Stream stream) override;
  void record_every_stream(Block* block) override;  // Any that the pool has met may use it.
  void meet_stream(Stream stream) override;         // It is about to use blocks.
  // Whether the pool has met more than one stream. Lock-free.
  bool many_streams() const override { return many_streams_.load(std::memory_order_relaxed); }
  // Makes a stream wait for all work the others were given so far, or the others for its own.
  void gather_streams(Stream stream) override;
  void spread_stream(Stream stream) override;
  // A stream that copies blocks for the runtime. It waits for nobody and nobody for it, but for
  // what the members below and record_stream say. They do nothing where the arena has no streams.
  void set_stream_apart(Stream stream);
  void follow_users(const Block* block, Stream stream);  // It waits for their work so far.
  // The stream has been made to wait for all that uses the block; it alone uses it from now on.
  void hand_over(Block* block, Stream stream);
  // Call it before a stream is destroyed: its name may become another stream's.
  void retire_stream(Stream stream) override;

  // Graph capture: work that is recorded runs later, and no event may be asked. The host first
  // waits for everything that was freed, so that every hole is ready for every stream; from then on
  // until the end a freed block stays out of use. Calls nest; call the first before the capture.
  void begin_quarantine();
  void end_quarantine();

  // Bounds live bytes and pages below the budget from now on; what is live already stays. Throws
  // std::invalid_argument unless 0 <= limit <= largest_budget().
  void set_limit(Bytes limit) override;
  // The scope is over, and what it leaves must have a place: as much as there are addresses for.
  void lift_budget();

  Bytes trim() override;  // Gives the pages of holes back; returns the bytes given back.
  void reset_peak() override;
  PoolStats stats() const override;
  Nanos moving() const override;
  Bytes budget() const override { return limit_; }  // Or the limit set below it.
  Bytes largest_budget() const override;
  Bytes live() const override;
  const Arena& arena() const { return *arena_; }
  // Times that pages were made, moved or given back: the host was busy with them. Lock-free.
  std::int64_t page_calls() const DTR_UNCHECKED;
  // Committed pages as ranges of offsets [begin, end), in order, none touching the next.
  std::vector<std::pair<Bytes, Bytes>> committed_runs() const;
  std::vector<Block> snapshot() const;  // All blocks in address order.
  // What a hole of `bytes` could be made of: all blocks in address order (pool_walk.h). Calls
  // `visit(bytes, owner)`: free bytes have no owner; no bytes stand for one or more blocks or pages
  // that nobody can have. `visit` must not call the pool.
  template <class Visit>
  Visit each_extent(Bytes bytes, Visit visit) const;
  MovePrices move_prices() const;  // The arena's, as far as they are measured by now.
  // What Fit::kRemap would cost for this size at these prices; kCannotMove where it would fail.
  Nanos move_price(Bytes size, const MovePrices& prices) const;
  void check() const override;
  Pool* pool() override { return this; }

  // The pool whose arena holds `address`, or null. O(1), lock-free; valid while a block of that
  // pool is live.
  static Pool* owner_of(const void* address);

  // All pools' locks, taken and given around fork() so that a child never inherits a lock that
  // nobody will open; calls nest. pthread_atfork has them from the time the library is loaded.
  // Handlers registered later run earlier on the way in, so a lock that is held while a pool is
  // called needs handlers of its own and is then taken before the pools' locks, as it must be.
  static void lock_all() DTR_UNCHECKED;
  static void unlock_all() DTR_UNCHECKED;

 private:
  Pool(std::unique_ptr<Arena> arena, Bytes budget);
  ~Pool() override;

  void retire() override;

  // What only devices need is kept out of the way of the rest.
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
  // What they point to is mutex_'s, but for an arena's constants, Blocks::find and Pages::calls.
  const std::unique_ptr<Arena> arena_;
  const std::unique_ptr<Blocks> blocks_;
  const std::unique_ptr<Holes> holes_ DTR_POINTS_TO_GUARDED_BY(mutex_);
  const std::unique_ptr<Pages> pages_ DTR_POINTS_TO_GUARDED_BY(mutex_);
  const std::unique_ptr<StreamOrder> order_ DTR_POINTS_TO_GUARDED_BY(mutex_);  // Null: no streams.
  const std::unique_ptr<Backing> backing_ DTR_POINTS_TO_GUARDED_BY(mutex_);

  // Guarded by: nothing: atomic
  // Written with mutex_ held.
  std::atomic<Bytes> limit_;  // Up to the budget.
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
  int quarantine_ DTR_GUARDED_BY(mutex_) = 0;  // Depth.
  Bytes quarantined_ DTR_GUARDED_BY(mutex_) = 0;
  std::vector<Node*> held_ DTR_GUARDED_BY(mutex_);  // Freed in the quarantine, in order.
};

}  // namespace dtr
