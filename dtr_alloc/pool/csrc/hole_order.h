// Holes in the order of size, then address: an ordered set whose keys are single numbers.
//
// Best fit asks it four times a pair of allocate and free, so a red-black tree of pointers, which
// follows a dozen of them at every step, took a third of the pool's time. Size and offset are one
// number of 128 bits, as two of 64 together allow arenas of 1 TiB only. Keys lie sorted in chunks
// of up to 128, found by the last key of each: two binary searches over adjacent numbers, and an
// insertion moves half a chunk. The list of chunks is itself flat: one insertion in some 64 splits
// a chunk and moves half of the list, of which a hole has a quarter of a byte.

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

  // A place in the order; steps over all holes as an iterator does.
  struct Place {
    std::size_t chunk;
    int at;
  };

  void insert(Node* hole);
  void remove(const Node* hole);
  // Gives a hole another extent. Cheap where its place in the order stays the same.
  void resize(Node* hole, Bytes offset, Bytes size);

  bool empty() const { return chunks_.empty(); }
  Node* last() const { return chunks_.back()->holes[chunks_.back()->count - 1]; }

  // Calls `visit` with each hole of at least `size` in order, until it returns true; returns that
  // hole, or null.
  template <class Visit>
  Node* first_from(Bytes size, const Visit& visit) const {
    for (Place place = lower_bound(key(size, 0)); place.chunk < chunks_.size(); step(place)) {
      Node* hole = chunks_[place.chunk]->holes[place.at];
      if (visit(hole)) return hole;
    }
    return nullptr;
  }

  // Calls `visit` with each hole from the last on, until it returns false; returns whether it never
  // did.
  template <class Visit>
  bool each_backwards(const Visit& visit) const {
    for (std::size_t chunk = chunks_.size(); chunk-- > 0;) {
      for (int at = chunks_[chunk]->count; at-- > 0;) {
        if (!visit(chunks_[chunk]->holes[at])) return false;
      }
    }
    return true;
  }

  std::int64_t check()
      const;  // Throws std::logic_error with a sentence; returns how many there are.

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

  std::vector<Key> lasts_;                      // Of each chunk.
  std::vector<std::unique_ptr<Chunk>> chunks_;  // None is empty.
};

}  // namespace dtr
