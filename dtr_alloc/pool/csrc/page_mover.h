// Moves pages of 4 KiB within one range of anonymous memory, by Linux's UFFDIO_MOVE. The
// alternative, mremap, makes a separate mapping for each run that it moves: after a hundred steps a
// pool has thousands of mappings, and moves get slower. UFFDIO_MOVE keeps one mapping. In runs of
// eight or more pages, moving a page takes about a tenth of the time of releasing it and clearing a
// new one (perf/memory/page_moves.py).
//
// The call needs a userfaultfd descriptor, and a range registered with it. We register the range
// for write protection but protect no page, so no fault is delivered. The class must not move huge
// pages: kernels before the autumn of 2025 may crash if such a page is being migrated. Source:
// Documentation/admin-guide/mm/userfaultfd.rst of Linux.

#pragma once

#include <cstdint>

#include "dtr_alloc/pool/csrc/units.h"

namespace dtr {

class PageMover {
 public:
  // The object is unusable if the kernel is older than 6.8, if the call is forbidden, as in Docker
  // by default, or if DTR_ALLOC_USERFAULTFD is 0.
  PageMover(std::uintptr_t base, Bytes capacity);
  ~PageMover() { give_up(); }
  PageMover(const PageMover&) = delete;
  PageMover& operator=(const PageMover&) = delete;

  bool usable() const { return descriptor_ >= 0; }

  // Returns how many bytes moved, counted from `from`. A page does not move if another process
  // shares it, or shared it and no write followed. An address without a page counts as moved. In a
  // forked child nothing moves, and the object becomes unusable.
  Bytes move(Bytes from, Bytes to, Bytes bytes);

  void give_up();

 private:
  const std::uintptr_t base_;
  int descriptor_ = -1;
};

}  // namespace dtr
