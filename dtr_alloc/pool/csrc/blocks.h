// Keeps the descriptors (Node) of a pool's blocks, and finds a block by its address in O(1).
//
// Two arrays outside the arena have room for all its blocks. They take memory only where touched,
// so those of a 64 GiB arena cost nothing until it is used. One holds the Nodes of 64 bytes (a
// cache line); a new block takes the Node freed last. The other has 4 bytes per granule (512
// bytes): the index of the live block there. Neither array moves, so a Block* stays valid and
// find() needs no lock. Beyond 2^32 - 1 blocks (256 GiB of Nodes), make() throws std::bad_alloc.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <new>

#include "dtr_alloc/pool/csrc/lazy_array.h"
#include "dtr_alloc/pool/csrc/memory.h"

namespace dtr {

// A block, and the links of a small hole in the list of holes of its size (holes.h).
struct Node : Block {
  Node* hole_previous = nullptr;
  Node* hole_next = nullptr;
};
static_assert(sizeof(Node) == 64);

// The place of a new block: a hole, and whether the block is cut from its low or its high end.
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

  // Clears the Node for reuse, so that a stale pointer to it leads to no other block.
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
  const std::int64_t most_;  // How many blocks can exist at a time.
  LazyArray<Node> nodes_;
  LazyArray<std::uint32_t> starts_;
  std::int64_t used_ = 0;
  Node* unused_ = nullptr;
};

}  // namespace dtr
