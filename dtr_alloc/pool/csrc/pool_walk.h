// Walks over the blocks of a pool, to find neighbours to evict together. The walk is a template, so
// that the compiler inlines the caller's code. A search takes a few nanoseconds a block. If it
// copied the blocks to a list first, it would take twice as long.

#pragma once

#include <algorithm>

#include "dtr_alloc/pool/csrc/pages.h"
#include "dtr_alloc/pool/csrc/pool.h"

namespace dtr {

// Calls visit(bytes, owner) for all blocks from `first` on; a live one without owner has 0 bytes.
template <class Visit>
[[gnu::noinline]] Visit each_block(const Block* first, Visit visit) {
  for (const Block* block = first; block != nullptr; block = block->next) {
    visit(block->owner != nullptr || block->free ? block->size : 0, block->owner);
  }
  return visit;
}

// Does the same, but splits holes into parts with and without pages; the latter have 0 bytes.
template <class Visit>
[[gnu::noinline]] Visit each_backed_part(const Block* first, const Pages& pages, Visit visit) {
  for (const Block* block = first; block != nullptr; block = block->next) {
    if (!block->free) {
      visit(block->owner != nullptr ? block->size : 0, block->owner);
      continue;
    }
    const Bytes end = block->offset + block->size;
    pages.each_run(pages.touched(*block), [&](Pages::Run run, bool committed) {
      const Bytes from = std::max(block->offset, pages.bytes(run.begin));
      visit(committed ? std::min(end, pages.bytes(run.end)) - from : 0, nullptr);
    });
  }
  return visit;
}

template <class Visit>
Visit Pool::each_extent(Bytes bytes, Visit visit) const {
  const MutexLock lock(mutex_);
  const Bytes spare = pages_->bytes(pages_->limit() - pages_->committed());
  const Bytes lacking = arena_->capacity() - pages_->committed_bytes();
  const bool any_page = spare >= std::min(bytes + 2 * arena_->page(), lacking);
  return any_page ? each_block(first_, visit) : each_backed_part(first_, *pages_, visit);
}

}  // namespace dtr
