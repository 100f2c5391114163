#include "dtr_alloc/pool/csrc/backing.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "dtr_alloc/pool/csrc/insist.h"

namespace dtr {

// Committed pages that hold no byte of a live block. Every page that holds one is committed.
std::int64_t Backing::releasable() const {
  const std::int64_t pages = pages_.touched(0, arena_.capacity()).size();
  return pages_.committed() - (pages - holes_.pages());
}

// Whether the block can have its pages within the limit once every page without a live byte is
// taken away. Pages that it shares with neighbours are committed already, so it adds those wholly
// inside the hole.
bool Backing::can_back(const Site& site, Bytes size, std::int64_t releasable) const {
  const Bytes begin = site.begin(size);
  const Pages::Run added = pages_.inside(*site.hole).common(pages_.touched(begin, begin + size));
  return pages_.committed() - releasable + added.size() <= pages_.limit();
}

// Each missing page costs a move, and a hole may have most of its pages. Among equals we take the
// first in the order of best fit, and stop at one that lacks at most one page. Old places come
// last.
Site Backing::site_after_moves(Bytes size) const {
  const std::int64_t spare = releasable();
  Site best;
  std::pair<bool, std::int64_t> least{true, pages_.limit() + 1};
  holes_.best_fit(size, [&](Node* hole) {
    for (const bool high : {false, true}) {
      const Site site{hole, high};
      if (!can_back(site, size, spare)) continue;
      const Bytes begin = site.begin(size);
      const Pages::Run run = pages_.touched(begin, begin + size);
      const std::pair cost{is_old_place(run), run.size() - pages_.committed(run)};
      if (cost >= least) continue;
      least = cost;
      best = site;
    }
    return least <= std::pair<bool, std::int64_t>{false, 1};
  });
  return best;
}

// Whether work may still use moved pages where the run would have its own.
bool Backing::is_old_place(Pages::Run run) const {
  return std::ranges::any_of(old_places_, [&](const OldPlace& old) {
    return old.pages.meets(run) && !order_->passed(old.fence);
  });
}

Nanos Backing::move_price(Bytes size, const MovePrices& prices) const {
  const Site site = site_after_moves(size);
  if (site.hole == nullptr) return kCannotMove;
  const Pages::Run run = pages_.touched(site.begin(size), site.begin(size) + size);
  const std::int64_t headroom = pages_.limit() - pages_.committed();
  std::int64_t missing = run.size() - pages_.committed(run) - headroom;
  Nanos price = 0ns;
  holes_.largest_first([&](const Node* from) {
    if (missing <= 0) return false;
    const Pages::Run inside = pages_.inside(*from);
    const std::int64_t kept = from == site.hole ? pages_.committed(inside.common(run)) : 0;
    const std::int64_t pages = std::min(missing, pages_.committed(inside) - kept);
    missing -= pages;
    if (pages > 0) price += prices.of(pages);
    return true;
  });
  return price;
}

// Prefers few large holes to many small ones: each hole costs a call to the arena.
template <class Take>
std::int64_t Backing::from_holes(std::int64_t count, const Take& take) {
  std::int64_t taken = 0;
  holes_.largest_first([&](Node* hole) {
    if (taken >= count) return false;
    if (pages_.committed(pages_.inside(*hole)) > 0) taken += take(hole, count - taken);
    return true;
  });
  return taken;
}

// Moves up to `most` pages of a hole to a block for the stream `user`.
std::int64_t Backing::move_from(Node* hole, Node* block, std::int64_t most, std::int32_t user) {
  const Pages::Run from = pages_.inside(*hole), to = pages_.touched(*block);
  if (order_ == nullptr) return pages_.move(from, to, most, [](Pages::Run) {});
  if (hole->fence != 0) {
    order_->mark(hole->fence);
    order_->wait(hole->fence, user);
    hand_on(hole->fence, block, to);
  }
  const std::size_t known = old_places_.size();
  try {
    return pages_.move(from, to, most, [&](Pages::Run old) {
      old_places_.push_back({old, 0});
      old_places_.back().fence = order_->copy(hole->fence);
    });
  } catch (...) {  // Perhaps the last run did not move.
    if (old_places_.size() > known) {
      const OldPlace& last = old_places_.back();
      if (pages_.committed(last.pages) > 0) {
        if (last.fence != 0) order_->drop(last.fence);
        old_places_.pop_back();
      }
    }
    throw;
  }
}

// Tells the block, and the holes that share its first or last page, who may still use its pages.
void Backing::hand_on(Fence fence, Node* block, Pages::Run run) {
  block->fence = order_->join(block->fence, order_->copy(fence));
  for (Block* beside : {block->previous, block->next}) {
    if (beside == nullptr || !beside->free || !pages_.touched(*beside).meets(run)) continue;
    beside->fence = order_->join(beside->fence, order_->copy(fence));
  }
}

// Releases up to `most` pages of a hole, once no work touches them any more.
std::int64_t Backing::release_from(Node* hole, std::int64_t most) {
  finish_all_moves();  // An old place would keep the memory.
  if (hole->fence != 0) hole->fence = order_->settle(hole->fence);
  return pages_.release(pages_.inside(*hole), most);
}

void Backing::poll() {
  if (!old_places_.empty()) order_->poll();
}

// Leaves the old places that are needed, and those that no work uses as of the last poll. A driver
// error about a place that is not needed is left for another request.
void Backing::finish_moves(Pages::Run needed) {
  for (std::size_t i = old_places_.size(); i-- > 0;) {
    const bool is_needed = old_places_[i].pages.meets(needed);
    if (!is_needed && !order_->passed(old_places_[i].fence)) continue;
    try {
      finish_move(i);
    } catch (const std::exception&) {
      if (is_needed) throw;
    }
  }
}

void Backing::finish_move(std::size_t i) {
  OldPlace& old = old_places_[i];
  old.fence = order_->settle(old.fence);
  const Nanos begin = arena_.now();
  pages_.leave(old.pages);
  note_move(0, begin);
  old = old_places_.back();
  old_places_.pop_back();
}

void Backing::note_move(std::int64_t pages, Nanos begin) {
  const Nanos took = arena_.now() - begin;
  figures_.moving += took;
  arena_.note_move(pages, took);
}

void Backing::finish_all_moves() {
  while (!old_places_.empty()) finish_move(old_places_.size() - 1);
}

void Backing::back(Node* block, bool remap, std::int32_t user) {
  const Pages::Run run = pages_.touched(*block);
  const auto take = [&](std::int64_t count) {
    const Nanos begin = arena_.now();
    const std::int64_t taken = from_holes(
        count, [&](Node* hole, std::int64_t most) { return move_from(hole, block, most, user); });
    figures_.remaps += taken > 0;
    note_move(taken, begin);
    return taken;
  };
  const auto missing = [&] { return run.size() - pages_.committed(run); };

  finish_moves(run);
  if (remap) {
    const std::int64_t headroom = std::max<std::int64_t>(pages_.limit() - pages_.committed(), 0);
    take(missing() - headroom);
  }
  try {
    pages_.commit(run);
  } catch (const std::bad_alloc&) {
    const std::int64_t needed = missing();
    const std::int64_t there = releasable() + needed;  // It counts the block's own as committed.
    if (needed > there || take(needed) < needed) throw;
  }
}

void Backing::give_surplus_back(Node* hole) {
  if (pages_.committed(pages_.inside(*hole)) == 0) return;
  try {
    release_from(hole, pages_.committed() - pages_.limit());
  } catch (const std::exception&) {
    // The caller need not know, as the block is free. The next request for a page takes these.
  }
}

std::int64_t Backing::give_back(std::int64_t most) {
  return from_holes(most,
                    [&](Node* hole, std::int64_t count) { return release_from(hole, count); });
}

void Backing::check(bool quarantine, std::vector<Fence>& fences) const {
  std::int64_t released = 0;
  holes_.largest_first([&](const Node* hole) {
    released += pages_.committed(pages_.inside(*hole));
    return true;
  });
  insist(releasable() == released, "pages that hold some byte of a block must be committed");
  insist(pages_.committed() <= pages_.limit() || releasable() == 0,
         "pages beyond the limit must be there for live blocks only");
  for (const OldPlace& old : old_places_) {
    insist(pages_.committed(old.pages) == 0, "an old place must have no page of its own");
    insist(!quarantine || old.fence == 0, "old places must be settled during a quarantine");
    if (old.fence != 0) fences.push_back(old.fence);
  }
}

}  // namespace dtr
