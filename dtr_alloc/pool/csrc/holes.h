// Keeps the free blocks (holes) of a pool, and finds the smallest that holds a request (best fit).
//
// Most requests are small (such as scalar arguments of operators), and have few different sizes. So
// holes below 64 granules (32 KiB) are in lists, one list for each size. A word has a bit for each
// list, set unless the list is empty. So one instruction finds the smallest size that fits. The
// hole freed last comes first in its list, since it is likely still in the cache. Larger holes are
// in a HoleOrder: by size, then by address.
//
// Also counts the pages that lie wholly inside holes. Every other page holds some live byte.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "dtr_alloc/pool/csrc/blocks.h"
#include "dtr_alloc/pool/csrc/hole_order.h"
#include "dtr_alloc/pool/csrc/insist.h"

namespace dtr {

class Holes {
 public:
  explicit Holes(Bytes page) : page_shift_(std::countr_zero(static_cast<std::uint64_t>(page))) {}

  void insert(Node* hole) {
    count_++;
    pages_ += pages_inside(hole->offset, hole->size);
    if (!small(hole->size)) return large_.insert(hole);
    Node*& head = lists_[bin(hole->size)];
    hole->hole_previous = nullptr;
    hole->hole_next = head;
    if (head != nullptr) head->hole_previous = hole;
    head = hole;
    filled_ |= std::uint64_t{1} << bin(hole->size);
  }

  void remove(Node* hole) {
    count_--;
    pages_ -= pages_inside(hole->offset, hole->size);
    if (!small(hole->size)) return large_.remove(hole);
    if (hole->hole_next != nullptr) hole->hole_next->hole_previous = hole->hole_previous;
    if (hole->hole_previous != nullptr) {
      hole->hole_previous->hole_next = hole->hole_next;
    } else if ((lists_[bin(hole->size)] = hole->hole_next) == nullptr) {
      filled_ &= ~(std::uint64_t{1} << bin(hole->size));
    }
  }

  // Changes the offset and size of a hole. Cheap if its position in the order stays the same.
  void resize(Node* hole, Bytes offset, Bytes size) {
    if (small(hole->size) || small(size)) {
      remove(hole);
      hole->offset = offset;
      hole->size = size;
      return insert(hole);
    }
    pages_ += pages_inside(offset, size) - pages_inside(hole->offset, hole->size);
    large_.resize(hole, offset, size);
  }

  // Returns the smallest hole of at least `size` for which `accept(hole)` is true, or null.
  template <class Accept>
  Node* best_fit(Bytes size, const Accept& accept) const {
    if (small(size)) {
      for (std::uint64_t left = filled_ >> bin(size) << bin(size); left != 0; left &= left - 1) {
        for (Node* hole = lists_[std::countr_zero(left)]; hole != nullptr; hole = hole->hole_next) {
          if (accept(hole)) return hole;
        }
      }
    }
    return large_.first_from(size, accept);
  }

  // Calls `visit` with each hole, largest first, until `visit` returns false.
  template <class Visit>
  void largest_first(const Visit& visit) const {
    if (!large_.each_backwards(visit)) return;
    for (std::uint64_t left = filled_; left != 0;) {
      const int size = 63 - std::countl_zero(left);
      left &= ~(std::uint64_t{1} << size);
      for (Node* hole = lists_[size]; hole != nullptr; hole = hole->hole_next) {
        if (!visit(hole)) return;
      }
    }
  }

  Bytes largest() const {
    if (!large_.empty()) return large_.last()->size;
    return filled_ == 0 ? 0 : (63 - std::countl_zero(filled_)) * kGranule;
  }

  std::int64_t count() const { return count_; }
  std::int64_t pages() const { return pages_; }  // Pages wholly inside holes.
  // Throws std::logic_error if an invariant is broken. Pool::check compares holes and free blocks.
  void check() const;

 private:
  static bool small(Bytes size) { return size < 64 * kGranule; }
  std::int64_t pages_inside(Bytes offset, Bytes size) const {
    const Bytes page = Bytes{1} << page_shift_;
    const std::int64_t begin = (offset + page - 1) >> page_shift_;
    return std::max<std::int64_t>(((offset + size) >> page_shift_) - begin, 0);
  }
  static int bin(Bytes size) { return static_cast<int>(size / kGranule); }

  std::array<Node*, 64> lists_ = {};
  std::uint64_t filled_ = 0;  // Bit i is set if lists_[i] is not empty.
  HoleOrder large_;
  std::int64_t count_ = 0, pages_ = 0;
  const int page_shift_;
};

inline void Holes::check() const {
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
