// Keeps holes (free blocks) ordered by size, then by address: a sorted set with numbers as keys.
//
// To allocate a block and free it later takes four operations on the set. When the set was a
// red-black tree, which follows a dozen pointers in each operation, it took a third of the pool's
// time. Instead we keep sorted keys in chunks of up to 128. A key is 128 bits: the hole's size,
// then its offset. A search is two binary searches: over the last keys of all chunks, then in one
// chunk. An insertion moves half of a chunk's keys on average. About one insertion in 64 also
// splits a full chunk and moves half of the list of chunks, which is short.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtr_alloc/pool/csrc/blocks.h"

namespace dtr {

class HoleOrder {
 public:
  __extension__ using Key = unsigned __int128;

  static Key key(Bytes size, Bytes offset) {
    return static_cast<Key>(size) << 64 | static_cast<Key>(offset);
  }
  static Key key(const Node* hole) { return key(hole->size, hole->offset); }

  // A position in the order, like an iterator.
  struct Place {
    std::size_t chunk;
    int at;
  };

  void insert(Node* hole);
  void remove(const Node* hole);
  // Changes the offset and size of a hole. Cheap if its position in the order stays the same.
  void resize(Node* hole, Bytes offset, Bytes size);

  bool empty() const { return chunks_.empty(); }
  Node* last() const { return chunks_.back()->holes[chunks_.back()->count - 1]; }

  // Returns the smallest hole of at least `size` for which `visit(hole)` is true, or null.
  template <class Visit>
  Node* first_from(Bytes size, const Visit& visit) const {
    for (Place place = lower_bound(key(size, 0)); place.chunk < chunks_.size(); step(place)) {
      Node* hole = chunks_[place.chunk]->holes[place.at];
      if (visit(hole)) return hole;
    }
    return nullptr;
  }

  // Calls `visit` with each hole, largest first. If `visit` returns false, stops and returns false.
  template <class Visit>
  bool each_backwards(const Visit& visit) const {
    for (std::size_t chunk = chunks_.size(); chunk-- > 0;) {
      for (int at = chunks_[chunk]->count; at-- > 0;) {
        if (!visit(chunks_[chunk]->holes[at])) return false;
      }
    }
    return true;
  }

  // Throws std::logic_error if an invariant is broken. Returns the number of holes.
  std::int64_t check() const;

 private:
  static constexpr int kChunk = 128;
  struct Chunk {
    int count = 0;
    Key keys[kChunk];
    Node* holes[kChunk];
  };

  Place lower_bound(Key key) const;
  Place place_of(const Node* hole) const;
  void step(Place& place) const {
    if (++place.at == chunks_[place.chunk]->count) place = {place.chunk + 1, 0};
  }
  void erase(Place place);
  void split(std::size_t chunk);

  std::vector<Key> lasts_;                      // The last key of each chunk.
  std::vector<std::unique_ptr<Chunk>> chunks_;  // No chunk is empty.
};

}  // namespace dtr
