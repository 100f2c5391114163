// Cuts and merges blocks, and counts. Blocks lie in one list in address order. A new hole merges
// with its free neighbours, so two holes never touch, and a block's neighbours answer
// free_neighbours in O(1). Blocks stores blocks (blocks.h), Holes orders the free ones (holes.h),
// Pages keeps the page limit (pages.h), Backing moves pages (backing.h). More of the pool is in
// pool_streams.cpp (devices) and pool_registry.cpp (all pools).
//
// To allocate and free a small block takes less time if a hole has its size than if a larger hole
// is cut and merged. perf/peers/throughput.py measures both together.

#include "dtr_alloc/pool/csrc/pool.h"

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "dtr_alloc/pool/csrc/backing.h"
#include "dtr_alloc/pool/csrc/blocks.h"
#include "dtr_alloc/pool/csrc/holes.h"
#include "dtr_alloc/pool/csrc/insist.h"
#include "dtr_alloc/pool/csrc/pages.h"

namespace dtr {
namespace {

std::unique_ptr<StreamOrder> order_of(Arena& arena) {
  std::unique_ptr<StreamEvents> events = arena.stream_events();
  return events ? std::make_unique<StreamOrder>(std::move(events)) : nullptr;
}

}  // namespace

Pool::Pool(std::unique_ptr<Arena> arena, Bytes budget)
    : Memory(arena->base()),
      arena_(std::move(arena)),
      blocks_(std::make_unique<Blocks>(arena_->capacity())),
      holes_(std::make_unique<Holes>(arena_->page())),
      pages_(std::make_unique<Pages>(*arena_, budget)),
      order_(order_of(*arena_)),
      backing_(std::make_unique<Backing>(*arena_, *holes_, *pages_, order_.get())),
      limit_(budget),
      budget_(budget) {
  Node* all = blocks_->make(0, arena_->capacity());
  holes_->insert(all);
  first_ = all;
}

Pool::~Pool() {
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      settle_holes();
      backing_->finish_all_moves();
      break;
    } catch (const std::exception&) {
      // If it fails twice, the device is gone, or this is a forked child: no work is left that could
      // touch the memory.
    }
  }
}

// The smallest hole that needs no page moved, or the outermost; first one that needs no waiting.
inline Node* Pool::backed_hole(Bytes size, Place place, std::int32_t user) {
  if (order_ != nullptr) [[unlikely]] {
    if (Node* hole = ready_hole(size, user)) return hole;
  }
  if (place != Place::kBestFit) return hole_from(place, size);
  return holes_->best_fit(size, [size, &pages = *pages_](const Node* hole) {
    return pages.fits(pages.touched(hole->offset, hole->offset + size));
  });
}

// Makes a block that has pages and that the stream may use.
inline Node* Pool::usable_block(Site site, Bytes size, std::int32_t user, bool remap) {
  if (order_ != nullptr) [[unlikely]]
    order_->wait(site.hole->fence, user);
  // If a hole is cut, its rest keeps the fence. Until the block has its own fence, giving the block
  // back merges it with the rest.
  Node* block = carve(site, size);
  try {
    if (remap || !pages_->all_committed(pages_->touched(*block))) {
      backing_->back(block, remap, user);
    }
    if (order_ != nullptr) [[unlikely]]
      block->fence = order_->allocated(block->fence, user);
  } catch (...) {
    give_back(block);
    throw;
  }
  return block;
}

Block* Pool::allocate(Bytes size, Fit fit, Stream stream, Place place) {
  if (size < 0) throw std::invalid_argument("the size of a block must not be negative");
  const MutexLock lock(mutex_);
  const Bytes rounded =
      size > arena_->capacity() ? size : round_to_granule(std::max(size, Bytes{1}));
  if (rounded > limit_ - live_) {
    failures_++;
    return nullptr;
  }

  std::int32_t user = 0;
  if (order_ != nullptr) [[unlikely]]
    user = meet(stream);
  Site site{backed_hole(rounded, place, user), place == Place::kHigh};
  const bool remap = site.hole == nullptr && fit != Fit::kCommitted;
  if (remap) {
    if (quarantine_ == 0) backing_->poll();
    site = backing_->site_after_moves(rounded);
  }
  if (site.hole == nullptr && fit == Fit::kBeyond) {
    site = {holes_->best_fit(rounded, [](const Node*) { return true; }), false};
  }
  if (site.hole == nullptr) {
    failures_++;
    return nullptr;
  }

  Node* block = usable_block(site, rounded, user, remap);
  blocks_->publish(block);
  live_ += rounded;
  peak_ = std::max(peak_, live_);
  allocated_ += rounded;
  allocations_++;
  peak_blocks_ = std::max(peak_blocks_, allocations_ - frees_);
  tell_allocated(*block);
  return block;
}

// The outermost backed hole.
Node* Pool::hole_from(Place place, Bytes size) const {
  Node* found = nullptr;
  for (Block* block = first_; block != nullptr; block = block->next) {
    if (!block->free || block->size < size) continue;
    Node* hole = static_cast<Node*>(block);
    const Bytes begin = Site{hole, place == Place::kHigh}.begin(size);
    if (!pages_->fits(pages_->touched(begin, begin + size))) continue;
    found = hole;
    if (place == Place::kLow) break;
  }
  return found;
}

// Makes a live block of one end of a hole.
Node* Pool::carve(Site site, Bytes size) {
  const auto [hole, high] = site;
  if (hole->size == size) {
    holes_->remove(hole);
    hole->free = false;
    return hole;
  }
  const Bytes rest = hole->size - size;
  Node* block = blocks_->make(site.begin(size), size);
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
    const MutexLock lock(mutex_);
    insist(!block->free, "a block must not be freed twice");
    Node* node = static_cast<Node*>(block);
    blocks_->withdraw(node);
    if (quarantine_ > 0) [[unlikely]] {
      insist(!node->quarantined, "a block must not be freed twice");
      node->quarantined = true;
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
  tell_freed(*block);
  if (order_ != nullptr) [[unlikely]]
    order_->freed(block->fence);
  give_back(block);
}

void Pool::give_back(Node* block) {
  Node* hole = merge(block);
  if (pages_->committed() > pages_->limit()) [[unlikely]]
    backing_->give_surplus_back(hole);
}

// Makes a hole of a live block, together with the holes on either side; returns it.
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
    hole->fence = order_->join(hole->fence, block->fence);
    if (join_left && join_right) hole->fence = order_->join(hole->fence, right->fence);
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

void Pool::unlink(Node* block) {
  (block->previous != nullptr ? block->previous->next : first_) = block->next;
  if (block->next != nullptr) block->next->previous = block->previous;
  blocks_->drop(block);
}

Block* Pool::find(const void* data) const {
  return blocks_->find(reinterpret_cast<std::uintptr_t>(data) - arena_->base());
}

std::pair<Bytes, Bytes> Pool::free_neighbours(const Block* block) const {
  const MutexLock lock(mutex_);
  const Block* left = block->previous;
  const Block* right = block->next;
  return {left != nullptr && left->free ? left->size : 0,
          right != nullptr && right->free ? right->size : 0};
}

void Pool::list_holes(std::vector<Beside>& holes) const {
  const MutexLock lock(mutex_);
  holes.clear();
  const auto owner = [](const Block* block) { return block != nullptr ? block->owner : nullptr; };
  holes_->largest_first([&](const Node* hole) {
    holes.push_back({hole->size, owner(hole->previous), owner(hole->next)});
    return true;
  });
}

void Pool::reset_peak() {
  const MutexLock lock(mutex_);
  peak_ = live_;
  pages_->reset_peak();
  peak_blocks_ = allocations_ - frees_;
}

PoolStats Pool::stats() const {
  const MutexLock lock(mutex_);
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
      .remaps = backing_->figures().remaps,
      .quarantined = quarantined_,
      .stream_waits = order_ != nullptr ? order_->waits() : 0,
      .allocated = allocated_,
      .peak_committed = pages_->peak_bytes(),
      .peak_blocks = peak_blocks_,
  };
}

Bytes Pool::largest_budget() const {
  const MutexLock lock(mutex_);
  return budget_;
}

Bytes Pool::live() const {
  const MutexLock lock(mutex_);
  return live_;
}

Nanos Pool::moving() const {
  const MutexLock lock(mutex_);
  return backing_->figures().moving;
}

std::int64_t Pool::page_calls() const { return pages_->calls(); }

MovePrices Pool::move_prices() const {
  const MutexLock lock(mutex_);
  return arena_->move_prices();
}

Nanos Pool::move_price(Bytes size, const MovePrices& prices) const {
  const MutexLock lock(mutex_);
  const Bytes rounded = round_to_granule(std::max(size, Bytes{1}));
  return rounded > limit_ - live_ ? kCannotMove : backing_->move_price(rounded, prices);
}

Bytes Pool::trim() {
  const MutexLock lock(mutex_);
  return pages_->bytes(backing_->give_back(pages_->committed()));
}

void Pool::lift_budget() {
  const MutexLock lock(mutex_);
  budget_ = limit_ = arena_->capacity();
  pages_->set_limit(limit_);
}

void Pool::set_limit(Bytes limit) {
  const MutexLock lock(mutex_);
  if (limit < 0 || limit > budget_) {
    throw std::invalid_argument("the limit of a pool must be between 0 and its budget");
  }
  pages_->set_limit(limit);
  limit_ = limit;
  backing_->give_back(pages_->committed() - pages_->limit());
}

std::vector<std::pair<Bytes, Bytes>> Pool::committed_runs() const {
  const MutexLock lock(mutex_);
  return pages_->runs();
}

std::vector<Block> Pool::snapshot() const {
  const MutexLock lock(mutex_);
  std::vector<Block> blocks;
  for (const Block* block = first_; block != nullptr; block = block->next) blocks.push_back(*block);
  return blocks;
}

}  // namespace dtr
