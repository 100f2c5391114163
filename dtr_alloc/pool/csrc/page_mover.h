// Moves pages of 4 KiB within one range of anonymous memory, by Linux's UFFDIO_MOVE. The kernel's
// other way, mremap, makes a mapping of its own of what it moves. A pool whose pages move at each
// step is then in thousands of mappings after a hundred steps, and each move takes longer the more
// there are. UFFDIO_MOVE leaves the range one mapping. In runs of eight or more a page takes about
// a tenth of the time of one that is given back and cleared anew (perf/memory/page_moves.py).
//
// The call needs a descriptor of userfaultfd, and a range that is registered with it. Ours is
// registered for write protection, which is never turned on, so no fault ever goes there. Huge
// pages are not for this class: kernels before the autumn of 2025 may crash where the call meets
// one that is just being migrated. Source: Documentation/admin-guide/mm/userfaultfd.rst of Linux.

#pragma once

#include <cstdint>

#include "dtr_alloc/pool/csrc/units.h"

namespace dtr {

class PageMover {
 public:
  // Moves nothing where the kernel is older than 6.8 or forbids the call, as Docker does by
  // default, or where DTR_ALLOC_USERFAULTFD is 0.
  PageMover(std::uintptr_t base, Bytes capacity);
  ~PageMover() { give_up(); }
  PageMover(const PageMover&) = delete;
  PageMover& operator=(const PageMover&) = delete;

  bool usable() const { return descriptor_ >= 0; }

  // Bytes that have moved, from the beginning on. A page that is shared with another process, or
  // was and has not been written since, does not move. What has no page yet counts as moved. In a
  // forked child nothing moves, and the object is of no use from then on.
  Bytes move(Bytes from, Bytes to, Bytes bytes);

  void give_up();

 private:
  const std::uintptr_t base_;
  int descriptor_ = -1;
};

}  // namespace dtr
