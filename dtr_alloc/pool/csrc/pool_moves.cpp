// Moving pages (Fit::kRemap): which hole could be backed if pages were taken from the others, what
// that would cost, and the taking itself.
//
// All rests on one fact: a page that holds no byte of a live block lies wholly inside one hole,
// because holes that touch are one hole. So the committed pages that a set of live blocks cannot do
// without are a sum over blocks, and whether a block can be backed in a given hole is arithmetic on
// a few numbers.
//
// On a device, work in a stream may still use a page where it is. The host seldom waits for it: the
// page is mapped at its new place as well, the stream that gets it waits, and a later request that
// finds the work done leaves the old place. The host waits only for a block that must have pages at
// an old place. The old work's fence goes with the page: to the hole that shares the page with the
// block, and to the block, whose hole it is if the request fails.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>

#include "dtr_alloc/pool/csrc/blocks.h"
#include "dtr_alloc/pool/csrc/holes.h"
#include "dtr_alloc/pool/csrc/pages.h"
#include "dtr_alloc/pool/csrc/pool.h"

namespace dtr {

// Committed pages that hold no byte of a live block. All that do hold one are committed.
std::int64_t Pool::releasable() const {
  const std::int64_t pages = pages_->touched(0, arena_->capacity()).size();
  return pages_->committed() - (pages - holes_->pages());
}

// Whether the block can be backed within the limit once every page that holds no live byte is taken
// away. Pages that it shares with its neighbours are committed already, so it adds those wholly
// inside the hole.
bool Pool::can_back(const Site& site, Bytes size, std::int64_t releasable) const {
  const Node* hole = site.hole;
  const Pages::Run inside = pages_->inside(hole->offset, hole->offset + hole->size);
  const Bytes begin = site.begin(size);
  const Pages::Run block = pages_->touched(begin, begin + size);
  const Pages::Run added{std::max(inside.begin, block.begin), std::min(inside.end, block.end)};
  return pages_->committed() - releasable + added.size() <= pages_->limit();
}

// The end of a hole that lacks the fewest pages, among those that can be backed once pages have
// moved: each page costs, and a hole may have most of them. Of equals the first in the order of
// best fit; one page is few enough to look no further. On a device old places come last.
Pool::Site Pool::site_after_moves(Bytes size) const {
  const std::int64_t spare = releasable();
  Site best;
  std::pair<bool, std::int64_t> least{true, pages_->limit() + 1};
  holes_->best_fit(size, [&](Node* hole) {
    for (const bool high : {false, true}) {
      const Site site{hole, high};
      if (!can_back(site, size, spare)) continue;
      const Bytes begin = site.begin(size), end = begin + size;
      const Pages::Run run = pages_->touched(begin, end);
      const std::pair cost{is_old_place(begin, end), run.size() - pages_->committed(run)};
      if (cost >= least) continue;
      least = cost;
      best = site;
    }
    return least <= std::pair<bool, std::int64_t>{false, 1};
  });
  return best;
}

// Whether work may still use pages where the range would have its own.
bool Pool::is_old_place(Bytes begin, Bytes end) const {
  if (old_places_.empty()) return false;
  const Pages::Run run = pages_->touched(begin, end);
  return std::ranges::any_of(old_places_, [&](const OldPlace& old) {
    return old.begin < run.end && run.begin < old.end && !order_->passed(old.fence);
  });
}

MovePrices Pool::move_prices() const {
  const std::lock_guard lock(mutex_);
  return arena_->move_prices();
}

Nanos Pool::move_price(Bytes size, const MovePrices& prices) const {
  const std::lock_guard lock(mutex_);
  const Bytes rounded = round_to_granule(std::max(size, Bytes{1}));
  if (rounded > limit_ - live_) return kCannotMove;
  const Site site = site_after_moves(rounded);
  if (site.hole == nullptr) return kCannotMove;
  const Pages::Run run = pages_->touched(site.begin(rounded), site.begin(rounded) + rounded);
  const std::int64_t headroom = pages_->limit() - pages_->committed();
  std::int64_t missing = run.size() - pages_->committed(run) - headroom;
  Nanos price = 0ns;
  holes_->largest_first([&](const Node* from) {
    if (missing <= 0) return false;
    const Pages::Run inside = pages_->inside(from->offset, from->offset + from->size);
    const Pages::Run own{std::max(inside.begin, run.begin), std::min(inside.end, run.end)};
    const std::int64_t kept = from == site.hole ? pages_->committed(own) : 0;
    const std::int64_t pages = std::min(missing, pages_->committed(inside) - kept);
    missing -= pages;
    if (pages > 0) price += prices.of(pages);
    return true;
  });
  return price;
}

// Few large holes before many small ones: each hole costs a call to the arena.
template <class Take>
std::int64_t Pool::from_holes(std::int64_t count, const Take& take) {
  std::int64_t taken = 0;
  holes_->largest_first([&](Node* hole) {
    if (taken >= count) return false;
    const Pages::Run inside = pages_->inside(hole->offset, hole->offset + hole->size);
    if (pages_->committed(inside) > 0) taken += take(hole, count - taken);
    return true;
  });
  return taken;
}

// Takes up to `most` pages of a hole to a block that `user` is to have.
std::int64_t Pool::move_from(Node* hole, Node* block, std::int64_t most, std::int32_t user) {
  const Pages::Run from = pages_->inside(hole->offset, hole->offset + hole->size);
  const Pages::Run to = pages_->touched(block->offset, block->offset + block->size);
  if (order_ == nullptr) return pages_->move(from, to, most, [](Pages::Run) {});
  if (hole->fence != 0) {
    order_->mark(hole->fence);
    order_->wait(hole->fence, user);
    hand_on(hole->fence, block, to.begin, to.end);
  }
  const std::size_t known = old_places_.size();
  try {
    return pages_->move(from, to, most, [&](Pages::Run old) {
      old_places_.push_back({old.begin, old.end, 0});
      old_places_.back().fence = order_->copy(hole->fence);
    });
  } catch (...) {  // The last run has perhaps not moved.
    if (old_places_.size() > known) {
      const OldPlace& last = old_places_.back();
      if (pages_->committed({last.begin, last.end}) > 0) {
        if (last.fence != 0) order_->drop(last.fence);
        old_places_.pop_back();
      }
    }
    throw;
  }
}

// Tells the block, and the holes that share its first or last page, who may still use its pages.
void Pool::hand_on(Fence fence, Node* block, std::int64_t first_page, std::int64_t last_page) {
  block->fence = order_->join(block->fence, order_->copy(fence));
  for (Block* beside : {block->previous, block->next}) {
    if (beside == nullptr || !beside->free) continue;
    const Pages::Run its = pages_->touched(beside->offset, beside->offset + beside->size);
    if (its.begin >= last_page || first_page >= its.end) continue;
    beside->fence = order_->join(beside->fence, order_->copy(fence));
  }
}

// Gives up to `most` pages of a hole back. No work may touch them any more.
std::int64_t Pool::release_from(Node* hole, std::int64_t most) {
  finish_all_moves();  // An old place would keep the memory.
  if (hole->fence != 0) hole->fence = order_->settle(hole->fence);
  return pages_->release(pages_->inside(hole->offset, hole->offset + hole->size), most);
}

// Leaves old places that no work uses any more, as far as the last poll has seen, and those where
// the block will have its pages. An error of the driver about a place that the block does not need
// is for another request.
void Pool::finish_moves(const Block* at) {
  const Pages::Run needed = pages_->touched(at->offset, at->offset + at->size);
  for (std::size_t i = old_places_.size(); i-- > 0;) {
    const OldPlace& old = old_places_[i];
    const bool overlaps = old.begin < needed.end && needed.begin < old.end;
    if (!overlaps && !order_->passed(old.fence)) continue;
    try {
      finish_move(i);
    } catch (const std::exception&) {
      if (overlaps) throw;
    }
  }
}

void Pool::finish_move(std::size_t i) {
  OldPlace& old = old_places_[i];
  old.fence = order_->settle(old.fence);
  const Nanos begin = arena_->now();
  pages_->leave({old.begin, old.end});
  note_move(0, begin);
  old = old_places_.back();
  old_places_.pop_back();
}

void Pool::note_move(std::int64_t pages, Nanos begin) {
  const Nanos took = arena_->now() - begin;
  moving_ += took;
  arena_->note_move(pages, took);
}

void Pool::finish_all_moves() {
  while (!old_places_.empty()) finish_move(old_places_.size() - 1);
}

// Commits the pages of a block: those beyond the limit, or beyond what the machine has, are taken
// from holes.
void Pool::back(Node* block, bool remap, std::int32_t user) {
  const Pages::Run run = pages_->touched(block->offset, block->offset + block->size);
  const auto take = [&](std::int64_t count) {
    const Nanos begin = arena_->now();
    const std::int64_t taken = from_holes(
        count, [&](Node* hole, std::int64_t most) { return move_from(hole, block, most, user); });
    remaps_ += taken > 0;
    note_move(taken, begin);
    return taken;
  };
  const auto missing = [&] { return run.size() - pages_->committed(run); };

  if (!old_places_.empty()) finish_moves(block);
  if (remap) {
    const std::int64_t headroom = std::max<std::int64_t>(pages_->limit() - pages_->committed(), 0);
    take(missing() - headroom);
  }
  try {
    pages_->commit(run);
    peak_committed_ = std::max(peak_committed_, pages_->committed_bytes());
  } catch (const std::bad_alloc&) {
    const std::int64_t needed = missing();
    const std::int64_t there = releasable() + needed;  // It takes the block's own for committed.
    if (needed > there || take(needed) < needed) throw;
  }
}

// Of a hole that has become larger. The others have no page left: a request that passed the limit
// took them first.
void Pool::give_surplus_back(Node* hole) {
  const Pages::Run inside = pages_->inside(hole->offset, hole->offset + hole->size);
  if (pages_->committed(inside) == 0) return;
  try {
    release_from(hole, pages_->committed() - pages_->limit());
  } catch (const std::exception&) {
    // Whoever frees a block need not know: it is free. The next request for a page takes these.
  }
}

Bytes Pool::trim() {
  const std::lock_guard lock(mutex_);
  return pages_->bytes(from_holes(pages_->committed(), [&](Node* hole, std::int64_t most) {
    return release_from(hole, most);
  }));
}

void Pool::lift_budget() {
  const std::lock_guard lock(mutex_);
  budget_ = limit_ = arena_->capacity();
  pages_->set_limit(limit_);
}

void Pool::set_limit(Bytes limit) {
  const std::lock_guard lock(mutex_);
  if (limit < 0 || limit > budget_) {
    throw std::invalid_argument("the limit of a pool must be between 0 and its budget");
  }
  pages_->set_limit(limit);
  limit_ = limit;
  const std::int64_t surplus = pages_->committed() - pages_->limit();
  if (surplus <= 0) return;
  from_holes(surplus, [&](Node* hole, std::int64_t most) { return release_from(hole, most); });
}

}  // namespace dtr
