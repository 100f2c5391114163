// Moves pages of 4 KiB within one range of anonymous memory, by Linux's UFFDIO_MOVE. The
// alternative, mremap, makes a separate mapping of what it moves. A pool whose pages move at each
// step then has thousands of mappings after a hundred steps, and moves get slower with their
// number. UFFDIO_MOVE keeps one mapping. In runs of eight or more pages, a move takes about a tenth
// of the time to release a page and clear a new one (perf/memory/page_moves.py).
//
// The call needs a descriptor of userfaultfd, and a range that is registered with it. We register
// ours for write protection and never turn that on, so no fault is delivered there. The class must
// not move huge pages: kernels before the autumn of 2025 may crash on one that is being migrated.
// Source: Documentation/admin-guide/mm/userfaultfd.rst of Linux.

#pragma once

#include <cstdint>

#include "dtr_alloc/pool/csrc/units.h"

namespace dtr {

class PageMover {
 public:
  // Moves nothing if the kernel is older than 6.8 or forbids the call, as Docker does by default,
  // or if DTR_ALLOC_USERFAULTFD is 0.
  PageMover(std::uintptr_t base, Bytes capacity);
  ~PageMover() { give_up(); }
  PageMover(const PageMover&) = delete;
  PageMover& operator=(const PageMover&) = delete;

  bool usable() const { return descriptor_ >= 0; }

  // Returns how many bytes moved, counted from `from`. A page does not move while another process
  // shares it, or if one did and it was not written since. A place without a page counts as moved.
  // In a forked child nothing moves, and the object stays unusable.
  Bytes move(Bytes from, Bytes to, Bytes bytes);

  void give_up();

 private:
  const std::uintptr_t base_;
  int descriptor_ = -1;
};

}  // namespace dtr
