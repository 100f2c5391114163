// Has the members that only a device's pool needs: work that waits in streams uses its blocks
// (streams.h), and a graph capture holds freed blocks back (quarantine).

#include <cstdint>
#include <stdexcept>

#include "dtr_alloc/pool/csrc/backing.h"
#include "dtr_alloc/pool/csrc/blocks.h"
#include "dtr_alloc/pool/csrc/holes.h"
#include "dtr_alloc/pool/csrc/insist.h"
#include "dtr_alloc/pool/csrc/pages.h"
#include "dtr_alloc/pool/csrc/pool.h"

namespace dtr {

void Pool::record_stream(Block* block, Stream stream) {
  if (order_ == nullptr) return;
  const MutexLock lock(mutex_);
  insist(!block->free && !block->quarantined, "only a live block can be used by a stream");
  order_->used(block->fence, meet(stream));
}

void Pool::record_every_stream(Block* block) {
  if (order_ == nullptr) return;
  const MutexLock lock(mutex_);
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
  const MutexLock lock(mutex_);
  meet(stream);
}

void Pool::gather_streams(Stream stream) {
  if (order_ == nullptr) return;
  const MutexLock lock(mutex_);
  order_->gather(meet(stream));
}

void Pool::spread_stream(Stream stream) {
  if (order_ == nullptr) return;
  const MutexLock lock(mutex_);
  order_->spread(meet(stream));
}

void Pool::set_stream_apart(Stream stream) {
  if (order_ == nullptr) return;
  const MutexLock lock(mutex_);
  order_->set_apart(stream);
}

void Pool::follow_users(const Block* block, Stream stream) {
  if (order_ == nullptr) return;
  const MutexLock lock(mutex_);
  order_->follow(block->fence, meet(stream));
}

void Pool::hand_over(Block* block, Stream stream) {
  if (order_ == nullptr) return;
  const MutexLock lock(mutex_);
  insist(!block->free && !block->quarantined, "only a live block can be used by a stream");
  order_->hand_over(block->fence, meet(stream));
}

void Pool::retire_stream(Stream stream) {
  if (order_ == nullptr) return;
  const MutexLock lock(mutex_);
  if (quarantine_ > 0) {
    throw std::runtime_error(
        "a stream cannot be retired while a graph is captured: its work must "
        "be waited for");
  }
  order_->retire(stream);
}

// The first backed hole that the stream may use without waiting.
Node* Pool::ready_hole(Bytes size, std::int32_t user) {
  if (quarantine_ == 0 && order_->met() > 1) order_->poll();  // A single stream never waits.
  return holes_->best_fit(size, [size, user, &order = *order_, &pages = *pages_](const Node* hole) {
    return order.ready(hole->fence, user) &&
           pages.fits(pages.touched(hole->offset, hole->offset + size));
  });
}

void Pool::settle_holes() {
  for (Block* block = first_; block != nullptr; block = block->next) {
    if (block->free && block->fence != 0) block->fence = order_->settle(block->fence);
  }
}

void Pool::begin_quarantine() {
  const MutexLock lock(mutex_);
  if (quarantine_ == 0) {
    settle_holes();
    backing_->finish_all_moves();
  }
  quarantine_++;
}

void Pool::end_quarantine() {
  const MutexLock lock(mutex_);
  if (quarantine_ == 0) throw std::invalid_argument("no quarantine has begun that could end");
  if (--quarantine_ == 0) vacate_held();
}

void Pool::vacate_held() {
  for (Node* block : held_) {
    block->quarantined = false;
    vacate(block);
  }
  held_.clear();
  quarantined_ = 0;
}

}  // namespace dtr
