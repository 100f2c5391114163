// Moving pages (Fit::kRemap): which hole could be backed if pages were taken from the others, what
// that would cost, and the taking itself.
//
// All rests on one fact: a page that holds no byte of a live block lies wholly inside one hole,
// because holes that touch are one hole. So the committed pages that a set of live blocks cannot do
// without are a sum over blocks, and whether a block can be backed in a given hole is arithmetic on
// a few numbers.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>

#include "dtr_alloc/csrc/blocks.h"
#include "dtr_alloc/csrc/holes.h"
#include "dtr_alloc/csrc/pages.h"
#include "dtr_alloc/csrc/pool.h"

namespace dtr {

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

// Best fit among those that can be backed once pages have moved.
Node* Pool::hole_after_moves(Bytes size) const {
  const std::int64_t spare = releasable();
  return holes_->best_fit(size, [&](const Node* hole) { return can_back(hole, size, spare); });
}

Nanos Pool::move_price(Bytes size, const MovePrices& prices) const {
  const std::lock_guard lock(mutex_);
  const Bytes rounded = round_to_granule(std::max(size, Bytes{1}));
  if (rounded > limit_ - live_) return kCannotMove;
  const Node* hole = hole_after_moves(rounded);
  if (hole == nullptr) return kCannotMove;
  const Pages::Run run = pages_->touched(hole->offset, hole->offset + rounded);
  const std::int64_t headroom = pages_->limit() - pages_->committed();
  std::int64_t missing = run.size() - pages_->committed(run) - headroom;
  Nanos price = 0ns;
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

Bytes Pool::trim() {
  const std::lock_guard lock(mutex_);
  return pages_->bytes(from_holes(pages_->committed(), [&](Pages::Run hole, std::int64_t most) {
    return pages_->release(hole, most);
  }));
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

}  // namespace dtr
