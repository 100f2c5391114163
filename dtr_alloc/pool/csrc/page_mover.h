// Moves pages of 4 KiB within one range of anonymous memory, by Linux's UFFDIO_MOVE. The
// alternative, mremap, makes a separate mapping for each run of pages that it moves: after a
// hundred training steps a pool has thousands of mappings, and moves get slower. UFFDIO_MOVE keeps
// one mapping. In runs of eight or more pages, moving a page takes about a tenth of the time of
// releasing it and clearing a new one (perf/memory/page_moves.py).
//
// UFFDIO_MOVE needs a userfaultfd descriptor, with which the range is registered. We register it
// for write protection but protect no page, so we never have to handle a fault. The class must not
// move huge pages: Linux before the autumn of 2025 may crash if it migrates a huge page while we
// move it. Source: Documentation/admin-guide/mm/userfaultfd.rst of Linux.

#pragma once

#include <cstdint>

#include "dtr_alloc/pool/csrc/units.h"

namespace dtr {

class PageMover {
 public:
  // usable() is false if the kernel is older than 6.8, if it forbids userfaultfd (as in Docker by
  // default), or if the environment variable DTR_ALLOC_USERFAULTFD is 0.
  PageMover(std::uintptr_t base, Bytes capacity);
  ~PageMover() { give_up(); }
  PageMover(const PageMover&) = delete;
  PageMover& operator=(const PageMover&) = delete;

  bool usable() const { return descriptor_ >= 0; }

  // Moves pages in address order until one cannot move; returns how many bytes moved. A page cannot
  // move if another process shares it, or shared it before and it was not written since. An address
  // without a page counts as moved. In a forked child nothing moves, and usable() becomes false.
  Bytes move(Bytes from, Bytes to, Bytes bytes);

  void give_up();  // Makes usable() false.

 private:
  const std::uintptr_t base_;
  int descriptor_ = -1;
};

}  // namespace dtr
