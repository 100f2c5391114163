// The walk over a pool, for a search for neighbours to evict. The walk is a template in a header of
// its own, so that the caller's code is inlined into it: a search costs a few nanoseconds a block,
// and building a list of the blocks first would double that.

#pragma once

#include <algorithm>
#include <mutex>

#include "dtr_alloc/pool/csrc/pages.h"
#include "dtr_alloc/pool/csrc/pool.h"

namespace dtr {

template <class Visit>
Visit Pool::each_extent(Bytes bytes, Visit visit) const {
  const std::lock_guard lock(mutex_);
  const Bytes spare = pages_->bytes(pages_->limit() - pages_->committed());
  const Bytes lacking = arena_->capacity() - pages_->committed_bytes();
  const bool any_page = spare >= std::min(bytes + 2 * arena_->page(), lacking);
  return any_page ? each_block(visit) : each_backed_part(visit);
}

template <class Visit>
[[gnu::noinline]] Visit Pool::each_block(Visit visit) const {
  for (const Block* block = first_; block != nullptr; block = block->next) {
    visit(block->owner != nullptr || block->free ? block->size : 0, block->owner);
  }
  return visit;
}

template <class Visit>
[[gnu::noinline]] Visit Pool::each_backed_part(Visit visit) const {
  for (const Block* block = first_; block != nullptr; block = block->next) {
    if (!block->free) {
      visit(block->owner != nullptr ? block->size : 0, block->owner);
      continue;
    }
    const Bytes end = block->offset + block->size;
    pages_->each_run(pages_->touched(block->offset, end), [&](Pages::Run run, bool committed) {
      const Bytes from = std::max(block->offset, pages_->bytes(run.begin));
      visit(committed ? std::min(end, pages_->bytes(run.end)) - from : 0, nullptr);
    });
  }
  return visit;
}

}  // namespace dtr
