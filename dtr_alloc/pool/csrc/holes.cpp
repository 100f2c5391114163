// Holes that change their size, and the check of all of them.

#include "dtr_alloc/pool/csrc/holes.h"

#include "dtr_alloc/pool/csrc/insist.h"

namespace dtr {

void Holes::resize(Node* hole, Bytes offset, Bytes size) {
  if (small(hole->size) || small(size)) {
    remove(hole);
    hole->offset = offset;
    hole->size = size;
    insert(hole);
    return;
  }
  pages_ += pages_inside(offset, size) - pages_inside(hole->offset, hole->size);
  large_.resize(hole, offset, size);
}

void Holes::check() const {
  std::int64_t seen = 0, pages = 0;
  for (int size = 0; size < 64; size++) {
    insist((lists_[size] != nullptr) == ((filled_ >> size & 1) != 0),
           "the bit of a size must say whether its list is empty");
    const Node* previous = nullptr;
    for (const Node* hole = lists_[size]; hole != nullptr; hole = hole->hole_next) {
      insist(hole->free, "a live block must not be in a list of holes");
      insist(hole->size == size * kGranule, "a hole must be in the list of its size");
      insist(hole->hole_previous == previous, "links between holes must agree both ways");
      previous = hole;
      seen++;
    }
  }
  seen += large_.check();
  largest_first([&](const Node* hole) {
    pages += pages_inside(hole->offset, hole->size);
    return true;
  });
  insist(pages == pages_, "the pages inside holes must be the sum over holes");
  insist(seen == count_, "the number of holes must be the number in the lists and the order");
}

}  // namespace dtr
