// Blocks lie in one list in address order; a hole and its free neighbours merge when it appears, so
// the list alternates as far as it can and its neighbours answer free_neighbours in O(1). Four
// parts share the work: Blocks stores them (blocks.h), Holes orders the free ones (holes.h), Pages
// keeps the page limit (pages.h), and this file cuts, merges, counts and locks.
//
// Taking pages away (Fit::kRemap) rests on one fact: a page that holds no byte of a live block lies
// wholly inside one hole, because holes that touch are one hole. So the committed pages that a set
// of live blocks cannot do without are a sum over blocks, and whether a block can be backed in a
// given hole is arithmetic on a few numbers.
//
// Measured on one core of an AMD EPYC, warm: an allocate and a free of a small block take 20 ns
// together where a hole has its size and 33 ns where a larger one is cut and merged, 12 of them for
// the two locks.

#include "dtr_alloc/csrc/pool.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <stdexcept>

#include "dtr_alloc/csrc/blocks.h"
#include "dtr_alloc/csrc/holes.h"
#include "dtr_alloc/csrc/pages.h"

namespace dtr {
namespace {

// Owner of each kArenaAlignment of the address space: 4 MiB, of which only the used pages have
// memory.
std::array<std::atomic<Pool*>, kVirtualEnd / kArenaAlignment> owners;

struct Registry {
  std::mutex mutex;
  std::vector<Pool*> pools;
};

// Never destroyed: tensors may give their blocks back after the destructors of this file's statics
// have run.
Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

// Not a recursive mutex: that remembers the id of its thread, and the child's is another.
thread_local int lock_all_depth = 0;

// When the library is loaded, so before anyone else's handlers: see lock_all().
[[maybe_unused]] const int registered =
    pthread_atfork(&Pool::lock_all, &Pool::unlock_all, &Pool::unlock_all);

void insist(bool holds, const char* sentence) {
  if (!holds) throw std::logic_error(sentence);
}

}  // namespace

Pool::Pool(std::unique_ptr<Arena> arena, Bytes budget)
    : arena_(std::move(arena)),
      budget_(budget),
      limit_(budget),
      blocks_(std::make_unique<Blocks>(arena_->capacity())),
      holes_(std::make_unique<Holes>()),
      pages_(std::make_unique<Pages>(*arena_, budget)) {
  if (std::unique_ptr<StreamEvents> events = arena_->stream_events()) {
    order_ = std::make_unique<StreamOrder>(std::move(events));
  }
  Node* all = blocks_->make(0, arena_->capacity());
  holes_->insert(all);
  first_ = all;
}

Pool::~Pool() {
  try {
    settle_holes();
  } catch (const std::exception&) {
    // The device is gone, or this is a forked child: no work is left that could touch the memory.
  }
}

Pool::Handle Pool::create(std::unique_ptr<Arena> arena, Bytes budget) {
  if (budget <= 0 || budget > arena->capacity()) {
    throw std::invalid_argument("the budget of a pool must be above 0 and within its arena");
  }
  Pool* pool = new Pool(std::move(arena), budget);
  pool->announce(pool);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.pools.push_back(pool);
  return Handle(pool);
}

void Pool::retire() {
  {
    const std::lock_guard lock(mutex_);
    retired_ = true;
    quarantine_ = 0;  // Nobody is left to end it.
    vacate_held();
    if (live_ > 0) return;
  }
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    std::erase(all.pools, this);
  }
  announce(nullptr);  // Before the arena gives its addresses up to others.
  delete this;
}

void Pool::announce(Pool* pool) const {
  const std::uintptr_t first = arena_->base() / kArenaAlignment;
  const std::uintptr_t last = (arena_->base() + arena_->capacity() - 1) / kArenaAlignment;
  for (std::uintptr_t slot = first; slot <= last; slot++) {
    owners[slot].store(pool, std::memory_order_release);
  }
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

Block* Pool::allocate(Bytes size, Fit fit, Stream stream, Place place) {
  if (size < 0) throw std::invalid_argument("the size of a block must not be negative");
  const std::lock_guard lock(mutex_);
  const Bytes rounded = size > budget_ ? size : round_to_granule(std::max(size, Bytes{1}));
  if (rounded > limit_ - live_) {
    failures_++;
    return nullptr;
  }

  std::int32_t user = 0;
  Node* hole = nullptr;
  if (order_ != nullptr) [[unlikely]]
    hole = ready_hole(rounded, user = meet(stream));
  if (hole == nullptr && place != Place::kBestFit) {
    hole = hole_from(place, rounded);
  } else if (hole == nullptr) {
    hole = holes_->best_fit(rounded, [&](const Node* candidate) {
      return pages_->fits(pages_->touched(candidate->offset, candidate->offset + rounded));
    });
  }
  const bool remap = hole == nullptr && fit != Fit::kCommitted;
  if (remap) hole = hole_after_moves(rounded);
  if (hole == nullptr && fit == Fit::kBeyond) {
    hole = holes_->best_fit(rounded, [](const Node*) { return true; });
  }
  if (hole == nullptr) {
    failures_++;
    return nullptr;
  }

  if (order_ != nullptr) [[unlikely]]
    order_->wait(hole->fence, user);
  // Of a hole that is cut the rest keeps the fence: until the block has one of its own, giving it
  // back merges it with the rest.
  Node* block = static_cast<Node*>(carve(hole, rounded, place == Place::kHigh && !remap));
  try {
    if (remap || !pages_->all_committed(pages_->touched(block->offset, block->offset + rounded))) {
      back(block, remap);
    }
    if (order_ != nullptr) [[unlikely]]
      block->fence = order_->allocated(block->fence, user);
  } catch (...) {
    give_back(block);
    throw;
  }
  blocks_->publish(block);
  live_ += rounded;
  peak_ = std::max(peak_, live_);
  allocated_ += rounded;
  allocations_++;
  peak_blocks_ = std::max(peak_blocks_, allocations_ - frees_);
  return block;
}

// The first backed hole that the stream may use without waiting.
Node* Pool::ready_hole(Bytes size, std::int32_t user) {
  if (quarantine_ == 0) order_->poll();
  return holes_->best_fit(size, [&](const Node* hole) {
    return order_->ready(hole->fence, user) &&
           pages_->fits(pages_->touched(hole->offset, hole->offset + size));
  });
}

// Commits the pages of a block: those beyond the limit, or beyond what the machine has, are taken
// from holes.
void Pool::back(const Block* block, bool remap) {
  const Pages::Run run = pages_->touched(block->offset, block->offset + block->size);
  const auto take = [&](std::int64_t count) {
    const std::int64_t taken = from_holes(
        count, [&](Pages::Run hole, std::int64_t most) { return pages_->move(hole, run, most); });
    remaps_ += taken > 0;
    return taken;
  };
  const auto missing = [&] { return run.size() - pages_->committed(run); };

  if (remap) take(missing() - std::max<std::int64_t>(pages_->limit() - pages_->committed(), 0));
  try {
    pages_->commit(run);
    peak_committed_ = std::max(peak_committed_, pages_->committed_bytes());
  } catch (const std::bad_alloc&) {
    const std::int64_t needed = missing();
    if (needed > releasable() || take(needed) < needed) throw;
  }
}

// Committed pages that hold no byte of a live block.
std::int64_t Pool::releasable() const {
  std::int64_t pages = 0;
  holes_->largest_first([&](const Node* hole) {
    pages += pages_->committed(pages_->inside(hole->offset, hole->offset + hole->size));
    return true;
  });
  return pages;
}

// Whether a block at the low end of `hole` can be backed within the limit once every page that
// holds no live byte is taken away. Pages that the block shares with its neighbours are committed
// already, so it adds those wholly inside the hole.
bool Pool::can_back(const Node* hole, Bytes size, std::int64_t releasable) const {
  const Pages::Run inside = pages_->inside(hole->offset, hole->offset + hole->size);
  const Pages::Run block = pages_->touched(hole->offset, hole->offset + size);
  const Pages::Run added{std::max(inside.begin, block.begin), std::min(inside.end, block.end)};
  return pages_->committed() - releasable + added.size() <= pages_->limit();
}

// Few large holes before many small ones: each hole costs a call to the arena. No page is taken
// that work in a stream may still touch.
template <class Take>
std::int64_t Pool::from_holes(std::int64_t count, const Take& take) {
  std::int64_t taken = 0;
  holes_->largest_first([&](Node* hole) {
    if (taken >= count) return false;
    const Pages::Run inside = pages_->inside(hole->offset, hole->offset + hole->size);
    if (hole->fence != 0) {
      if (pages_->committed(inside) == 0) return true;
      hole->fence = order_->settle(hole->fence);
    }
    taken += take(inside, count - taken);
    return true;
  });
  return taken;
}

void Pool::settle_holes() {
  for (Block* block = first_; block != nullptr; block = block->next) {
    if (block->free && block->fence != 0) block->fence = order_->settle(block->fence);
  }
}

// The outermost backed hole.
Node* Pool::hole_from(Place place, Bytes size) const {
  Block* found = nullptr;
  for (Block* block = first_; block != nullptr; block = block->next) {
    if (!block->free || block->size < size) continue;
    const Bytes begin = place == Place::kHigh ? block->offset + block->size - size : block->offset;
    if (!pages_->fits(pages_->touched(begin, begin + size))) continue;
    found = block;
    if (place == Place::kLow) break;
  }
  return static_cast<Node*>(found);
}

// Makes a live block of one end of a hole.
Block* Pool::carve(Node* hole, Bytes size, bool high) {
  if (hole->size == size) {
    holes_->remove(hole);
    hole->free = false;
    return hole;
  }
  const Bytes rest = hole->size - size;
  Node* block = blocks_->make(high ? hole->offset + rest : hole->offset, size);
  block->free = false;
  if (high) {
    block->previous = hole;
    block->next = hole->next;
    if (hole->next != nullptr) hole->next->previous = block;
    hole->next = block;
    holes_->resize(hole, hole->offset, rest);
    return block;
  }
  block->previous = hole->previous;
  block->next = hole;
  (hole->previous != nullptr ? hole->previous->next : first_) = block;
  hole->previous = block;
  holes_->resize(hole, hole->offset + size, rest);
  return block;
}

void Pool::free(Block* block) {
  bool last;
  {
    const std::lock_guard lock(mutex_);
    insist(!block->free, "a block must not be freed twice");
    Node* node = static_cast<Node*>(block);
    blocks_->withdraw(node);
    if (quarantine_ > 0) [[unlikely]] {
      insist(!node->quarantined, "a block must not be freed twice");
      node->quarantined = true;
      node->owner = nullptr;
      quarantined_ += node->size;
      held_.push_back(node);
      return;
    }
    vacate(node);
    last = retired_ && live_ == 0;
  }
  if (last) retire();
}

void Pool::vacate(Node* block) {
  live_ -= block->size;
  frees_++;
  if (order_ != nullptr) [[unlikely]]
    order_->freed(block->fence);
  give_back(block);
}

void Pool::vacate_held() {
  for (Node* block : held_) {
    block->quarantined = false;
    vacate(block);
  }
  held_.clear();
  quarantined_ = 0;
}

void Pool::record_stream(Block* block, Stream stream) {
  if (order_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  insist(!block->free && !block->quarantined, "only a live block can be used by a stream");
  order_->used(block->fence, meet(stream));
}

void Pool::record_every_stream(Block* block) {
  if (order_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  insist(!block->free && !block->quarantined, "only a live block can be used by a stream");
  order_->shared(block->fence);
}

std::int32_t Pool::meet(Stream stream) {
  const std::int32_t index = order_->index(stream);
  if (order_->streams() > 1) many_streams_ = true;
  return index;
}

void Pool::meet_stream(Stream stream) {
  if (order_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  meet(stream);
}

void Pool::gather_streams(Stream stream) {
  if (order_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  order_->gather(meet(stream));
}

void Pool::spread_stream(Stream stream) {
  if (order_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  order_->spread(meet(stream));
}

void Pool::retire_stream(Stream stream) {
  if (order_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  order_->retire(stream);
}

void Pool::begin_quarantine() {
  const std::lock_guard lock(mutex_);
  if (quarantine_ == 0) settle_holes();
  quarantine_++;
}

void Pool::end_quarantine() {
  const std::lock_guard lock(mutex_);
  if (quarantine_ == 0) throw std::invalid_argument("no quarantine has begun that could end");
  if (--quarantine_ == 0) vacate_held();
}

void Pool::give_back(Node* block) {
  Node* hole = merge(block);
  if (pages_->committed() > pages_->limit()) [[unlikely]]
    give_surplus_back(hole);
}

// Of a hole that has become larger. The others have no page left: a request that passed the limit
// took them first.
void Pool::give_surplus_back(Node* hole) {
  const Pages::Run inside = pages_->inside(hole->offset, hole->offset + hole->size);
  if (pages_->committed(inside) == 0) return;
  try {
    if (hole->fence != 0) hole->fence = order_->settle(hole->fence);
    pages_->release(inside, pages_->committed() - pages_->limit());
  } catch (const std::exception&) {
    // Whoever frees a block need not know: it is free. The next request for a page takes these.
  }
}

// Makes a hole of a live block, one with the holes on either side; returns that.
Node* Pool::merge(Node* block) {
  block->free = true;
  block->owner = nullptr;
  Node* left = static_cast<Node*>(block->previous);
  Node* right = static_cast<Node*>(block->next);
  const bool join_left = left != nullptr && left->free;
  const bool join_right = right != nullptr && right->free;
  if (!join_left && !join_right) {
    holes_->insert(block);
    return block;
  }

  Node* hole = join_left ? left : right;
  if (order_ != nullptr) [[unlikely]] {
    join_fences(hole, block, join_left && join_right ? right : nullptr);
  }
  if (join_left && join_right) {
    holes_->remove(right);
    holes_->resize(left, left->offset, left->size + block->size + right->size);
    unlink(right);
  } else if (join_left) {
    holes_->resize(left, left->offset, left->size + block->size);
  } else {
    holes_->resize(right, block->offset, block->size + right->size);
  }
  unlink(block);
  return hole;
}

// The node that stays gets the fences of those that go.
void Pool::join_fences(Node* stays, const Node* goes, const Node* goes_too) {
  stays->fence = order_->join(stays->fence, goes->fence);
  if (goes_too != nullptr) stays->fence = order_->join(stays->fence, goes_too->fence);
}

void Pool::unlink(Node* block) {
  (block->previous != nullptr ? block->previous->next : first_) = block->next;
  if (block->next != nullptr) block->next->previous = block->previous;
  blocks_->drop(block);
}

Block* Pool::find(const void* data) const {
  return blocks_->find(reinterpret_cast<std::uintptr_t>(data) - arena_->base());
}

void* Pool::data(const Block* block) const {
  return reinterpret_cast<void*>(arena_->base() + block->offset);
}

std::pair<Bytes, Bytes> Pool::free_neighbours(const Block* block) const {
  const std::lock_guard lock(mutex_);
  const Block* left = block->previous;
  const Block* right = block->next;
  return {left != nullptr && left->free ? left->size : 0,
          right != nullptr && right->free ? right->size : 0};
}

void Pool::list_holes(std::vector<Beside>& holes) const {
  const std::lock_guard lock(mutex_);
  holes.clear();
  const auto owner = [](const Block* block) { return block != nullptr ? block->owner : nullptr; };
  holes_->largest_first([&](const Node* hole) {
    holes.push_back({hole->size, owner(hole->previous), owner(hole->next)});
    return true;
  });
}

Bytes Pool::trim() {
  const std::lock_guard lock(mutex_);
  return pages_->bytes(from_holes(pages_->committed(), [&](Pages::Run hole, std::int64_t most) {
    return pages_->release(hole, most);
  }));
}

void Pool::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = live_;
  peak_committed_ = pages_->committed_bytes();
  peak_blocks_ = allocations_ - frees_;
}

void Pool::set_limit(Bytes limit) {
  if (limit < 0 || limit > budget_) {
    throw std::invalid_argument("the limit of a pool must be between 0 and its budget");
  }
  const std::lock_guard lock(mutex_);
  pages_->set_limit(limit);
  limit_ = limit;
  const std::int64_t surplus = pages_->committed() - pages_->limit();
  if (surplus <= 0) return;
  from_holes(surplus,
             [&](Pages::Run hole, std::int64_t most) { return pages_->release(hole, most); });
}

PoolStats Pool::stats() const {
  const std::lock_guard lock(mutex_);
  const Bytes free = std::max<Bytes>(limit_ - live_, 0);
  const Bytes largest = std::min(holes_->largest(), free);
  return {
      .budget = limit_,
      .live = live_,
      .peak = peak_,
      .committed = pages_->committed_bytes(),
      .largest_hole = largest,
      .external_fragmentation = free > 0 ? 1 - static_cast<double>(largest) / free : 0,
      .live_blocks = allocations_ - frees_,
      .allocations = allocations_,
      .frees = frees_,
      .failures = failures_,
      .remaps = remaps_,
      .quarantined = quarantined_,
      .stream_waits = order_ != nullptr ? order_->waits() : 0,
      .allocated = allocated_,
      .peak_committed = peak_committed_,
      .peak_blocks = peak_blocks_,
  };
}

Bytes Pool::budget() const { return limit_; }

Bytes Pool::live() const {
  const std::lock_guard lock(mutex_);
  return live_;
}

const Arena& Pool::arena() const { return *arena_; }

Nanos Pool::move_price(Bytes size, const MovePrices& prices) const {
  const std::lock_guard lock(mutex_);
  const Bytes rounded = round_to_granule(std::max(size, Bytes{1}));
  if (rounded > limit_ - live_) return kCannotMove;
  const Node* hole = hole_after_moves(rounded);
  if (hole == nullptr) return kCannotMove;
  const Pages::Run run = pages_->touched(hole->offset, hole->offset + rounded);
  const std::int64_t headroom = pages_->limit() - pages_->committed();
  std::int64_t missing = run.size() - pages_->committed(run) - headroom;
  Nanos price = 0;
  holes_->largest_first([&](const Node* from) {
    if (missing <= 0) return false;
    const std::int64_t pages = std::min(
        missing, pages_->committed(pages_->inside(from->offset, from->offset + from->size)));
    missing -= pages;
    if (pages > 0) price += prices.of(pages);
    return true;
  });
  return price;
}

// Best fit among those that can be backed once pages have moved.
Node* Pool::hole_after_moves(Bytes size) const {
  const std::int64_t spare = releasable();
  return holes_->best_fit(size, [&](const Node* hole) { return can_back(hole, size, spare); });
}

std::vector<std::pair<Bytes, Bytes>> Pool::committed_runs() const {
  const std::lock_guard lock(mutex_);
  return pages_->runs();
}

std::vector<Block> Pool::snapshot() const {
  const std::lock_guard lock(mutex_);
  std::vector<Block> blocks;
  for (const Block* block = first_; block != nullptr; block = block->next) blocks.push_back(*block);
  return blocks;
}

}  // namespace dtr
