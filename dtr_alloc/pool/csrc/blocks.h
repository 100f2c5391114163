// Keeps the pool's blocks outside the arena, and finds the block at an address in O(1).
//
// Two arrays span the whole arena. The kernel backs them only where they are touched, so an arena
// of 64 GiB costs nothing until it is used. One array holds the blocks, 64 bytes (one cache line)
// each; a new block takes the entry freed last. The other holds, in 4 bytes for each granule, the
// index of the live block that starts there. Neither array moves, so a Block* is stable and find()
// needs no lock. Beyond 2^32 - 1 blocks (256 GiB of entries), make() fails as if memory were full.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <new>

#include "dtr_alloc/pool/csrc/lazy_array.h"
#include "dtr_alloc/pool/csrc/memory.h"

namespace dtr {

// A block and its links in the list of holes of its size (holes.h).
struct Node : Block {
  Node* hole_previous = nullptr;
  Node* hole_next = nullptr;
};
static_assert(sizeof(Node) == 64);

// A hole, and whether to cut a block from its low or its high end.
struct Site {
  Node* hole = nullptr;
  bool high = false;

  Bytes begin(Bytes size) const { return high ? hole->offset + hole->size - size : hole->offset; }
};

class Blocks {
 public:
  explicit Blocks(Bytes capacity)
      : granules_(capacity / kGranule),
        most_(std::min(granules_, std::int64_t{std::numeric_limits<std::uint32_t>::max()})),
        nodes_(most_ + 1),
        starts_(granules_) {}

  Node* make(Bytes offset, Bytes size) {
    Node* node = unused_;
    if (node != nullptr) {
      unused_ = node->hole_next;
    } else {
      if (used_ == most_) throw std::bad_alloc();
      node = nodes_.data() + ++used_;  // Index 0 means "no block" in starts_.
    }
    return new (node) Node{{.offset = offset, .size = size}};
  }

  // Clears the node, so that a stale pointer finds no neighbours.
  void drop(Node* node) {
    *node = Node{};
    node->hole_next = unused_;
    unused_ = node;
  }

  void publish(const Node* node) { start(node).store(index(node), std::memory_order_release); }
  void withdraw(const Node* node) { start(node).store(0, std::memory_order_release); }

  Node* find(Bytes offset) const {
    if (offset % kGranule != 0 || offset < 0 || offset / kGranule >= granules_) return nullptr;
    const std::uint32_t i =
        std::atomic_ref(starts_[offset / kGranule]).load(std::memory_order_acquire);
    return i == 0 ? nullptr : nodes_.data() + i;
  }

 private:
  std::uint32_t index(const Node* node) const {
    return static_cast<std::uint32_t>(node - nodes_.data());
  }
  std::atomic_ref<std::uint32_t> start(const Node* node) const {
    return std::atomic_ref(starts_[node->offset / kGranule]);
  }

  const std::int64_t granules_;
  const std::int64_t most_;  // The most blocks at a time.
  LazyArray<Node> nodes_;
  LazyArray<std::uint32_t> starts_;
  std::int64_t used_ = 0;
  Node* unused_ = nullptr;
};

}  // namespace dtr
