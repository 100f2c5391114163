// Checks everything that must hold of a pool between two calls, in O(blocks + pages). The tests
// call it after each step.

#include <algorithm>

#include "dtr_alloc/pool/csrc/backing.h"
#include "dtr_alloc/pool/csrc/blocks.h"
#include "dtr_alloc/pool/csrc/holes.h"
#include "dtr_alloc/pool/csrc/insist.h"
#include "dtr_alloc/pool/csrc/pages.h"
#include "dtr_alloc/pool/csrc/pool.h"

namespace dtr {

void Pool::check_hole(const Block& hole) const {
  insist(!hole.quarantined, "a hole must be out of quarantine");
  insist(quarantine_ == 0 || hole.fence == 0, "holes must be settled during a quarantine");
  insist(hole.previous == nullptr || !hole.previous->free, "two holes must never touch");
  insist(hole.owner == nullptr, "a hole must have no owner");
  insist(blocks_->find(hole.offset) == nullptr, "no live block may be found in a hole");
}

void Pool::check_live(const Block& block) const {
  insist(!block.quarantined || block.owner == nullptr, "a freed block must have no owner");
  insist(blocks_->find(block.offset) == (block.quarantined ? nullptr : &block),
         "a live block must be found by its address, until it is freed");
  insist(pages_->all_committed(pages_->touched(block)),
         "every page of a live block must be committed");
}

void Pool::check() const {
  const MutexLock lock(mutex_);
  Bytes end = 0;
  Bytes live = 0;
  std::int64_t live_blocks = 0;
  std::int64_t holes = 0;
  Bytes quarantined = 0;
  std::vector<Fence> of_holes;
  std::vector<Fence> of_live;
  const Block* previous = nullptr;
  for (const Block* block = first_; block != nullptr; block = block->next) {
    insist(block->offset == end, "blocks must cover the arena without gaps");
    insist(block->size > 0 && block->size % kGranule == 0, "a block must be whole granules");
    insist(block->previous == previous, "links between blocks must agree both ways");
    (block->free ? of_holes : of_live).push_back(block->fence);
    if (block->quarantined) quarantined += block->size;
    if (block->free) {
      check_hole(*block);
      holes++;
    } else {
      check_live(*block);
      live += block->size;
      live_blocks++;
    }
    end += block->size;
    previous = block;
  }
  insist(end == arena_->capacity(), "blocks must cover the arena to its end");
  insist(live == live_, "live bytes must be the sum of the live blocks");
  insist(live_blocks == allocations_ - frees_, "every allocated block must be live until freed");
  insist(live_ <= budget_, "live bytes must not pass the budget");
  insist(live_ <= peak_, "the peak must not be below the live bytes");
  insist(holes == holes_->count(), "every free block must be in the order of holes");
  insist(quarantined == quarantined_, "quarantined bytes must be the sum of the held blocks");
  insist(quarantine_ > 0 || quarantined == 0, "no block may be held without a quarantine");
  backing_->check(quarantine_ > 0, of_holes);
  holes_->check();
  pages_->check();
  if (order_ != nullptr) {
    order_->check(of_holes, of_live);
  } else {
    const auto none = [](Fence fence) { return fence == 0; };
    insist(std::ranges::all_of(of_holes, none) && std::ranges::all_of(of_live, none),
           "a block must have no fence where there are no streams");
  }
}

}  // namespace dtr
