// Inserts, removes and moves holes in their order, and checks the order.

#include "dtr_alloc/pool/csrc/hole_order.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "dtr_alloc/pool/csrc/insist.h"

namespace dtr {
namespace {

// The first of `count` sorted keys that is not below `key`. No branch depends on a key.
std::int64_t first_not_below(const HoleOrder::Key* keys, std::int64_t count, HoleOrder::Key key) {
  const HoleOrder::Key* base = keys;
  while (count > 1) {
    const std::int64_t half = count / 2;
    base += base[half - 1] < key ? half : 0;
    count -= half;
  }
  return base - keys + (count == 1 && *base < key ? 1 : 0);
}

}  // namespace

HoleOrder::Place HoleOrder::lower_bound(Key key) const {
  const auto chunk = static_cast<std::size_t>(
      first_not_below(lasts_.data(), static_cast<std::int64_t>(lasts_.size()), key));
  if (chunk == chunks_.size()) return {chunk, 0};
  const Chunk& found = *chunks_[chunk];
  return {chunk, static_cast<int>(first_not_below(found.keys, found.count, key))};
}

HoleOrder::Place HoleOrder::place_of(const Node* hole) const {
  const Place place = lower_bound(key(hole));
  if (place.chunk == chunks_.size() || chunks_[place.chunk]->holes[place.at] != hole) {
    throw std::logic_error("a hole must be where its size and offset say");
  }
  return place;
}

void HoleOrder::split(std::size_t chunk) {
  auto upper = std::make_unique<Chunk>();
  Chunk& lower = *chunks_[chunk];
  constexpr int kHalf = kChunk / 2;
  std::copy(lower.keys + kHalf, lower.keys + kChunk, upper->keys);
  std::copy(lower.holes + kHalf, lower.holes + kChunk, upper->holes);
  upper->count = kChunk - kHalf;
  lower.count = kHalf;
  lasts_.insert(lasts_.begin() + static_cast<std::ptrdiff_t>(chunk), lower.keys[kHalf - 1]);
  chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(chunk) + 1, std::move(upper));
}

void HoleOrder::insert(Node* hole) {
  const Key key = HoleOrder::key(hole);
  if (chunks_.empty()) {
    chunks_.push_back(std::make_unique<Chunk>());
    lasts_.push_back(key);
  }
  Place place = lower_bound(key);
  if (place.chunk == chunks_.size()) place = {place.chunk - 1, chunks_.back()->count};
  if (chunks_[place.chunk]->count == kChunk) {
    split(place.chunk);
    if (place.at > kChunk / 2) place = {place.chunk + 1, place.at - kChunk / 2};
  }
  Chunk& chunk = *chunks_[place.chunk];
  std::copy_backward(chunk.keys + place.at, chunk.keys + chunk.count, chunk.keys + chunk.count + 1);
  std::copy_backward(chunk.holes + place.at, chunk.holes + chunk.count,
                     chunk.holes + chunk.count + 1);
  chunk.keys[place.at] = key;
  chunk.holes[place.at] = hole;
  chunk.count++;
  lasts_[place.chunk] = chunk.keys[chunk.count - 1];
}

void HoleOrder::erase(Place place) {
  Chunk& chunk = *chunks_[place.chunk];
  std::copy(chunk.keys + place.at + 1, chunk.keys + chunk.count, chunk.keys + place.at);
  std::copy(chunk.holes + place.at + 1, chunk.holes + chunk.count, chunk.holes + place.at);
  if (--chunk.count > 0) lasts_[place.chunk] = chunk.keys[chunk.count - 1];
  if (chunk.count > kChunk / 8) return;
  // Nearly empty: the rest moves to the front of the next chunk, if that has room to spare.
  if (chunk.count > 0) {
    if (place.chunk + 1 == chunks_.size()) return;
    Chunk& next = *chunks_[place.chunk + 1];
    if (next.count > kChunk / 2) return;
    std::copy_backward(next.keys, next.keys + next.count, next.keys + next.count + chunk.count);
    std::copy_backward(next.holes, next.holes + next.count, next.holes + next.count + chunk.count);
    std::copy(chunk.keys, chunk.keys + chunk.count, next.keys);
    std::copy(chunk.holes, chunk.holes + chunk.count, next.holes);
    next.count += chunk.count;
  }
  chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(place.chunk));
  lasts_.erase(lasts_.begin() + static_cast<std::ptrdiff_t>(place.chunk));
}

void HoleOrder::remove(const Node* hole) { erase(place_of(hole)); }

void HoleOrder::resize(Node* hole, Bytes offset, Bytes size) {
  const Place place = place_of(hole);
  Chunk& chunk = *chunks_[place.chunk];
  const Key key = HoleOrder::key(size, offset);
  hole->offset = offset;
  hole->size = size;
  // Most often the one large hole at the end of the arena: it stays the largest.
  const bool last = place.at + 1 == chunk.count;
  const bool above = place.at > 0 ? chunk.keys[place.at - 1] < key
                                  : place.chunk == 0 || lasts_[place.chunk - 1] < key;
  const bool below =
      !last ? key < chunk.keys[place.at + 1]
            : place.chunk + 1 == chunks_.size() || key < chunks_[place.chunk + 1]->keys[0];
  if (above && below) {
    chunk.keys[place.at] = key;
    if (last) lasts_[place.chunk] = key;
    return;
  }
  erase(place);
  insert(hole);
}

std::int64_t HoleOrder::check() const {
  insist(lasts_.size() == chunks_.size(), "each chunk must have a last key");
  std::int64_t seen = 0;
  Key previous = 0;
  for (std::size_t i = 0; i < chunks_.size(); i++) {
    const Chunk& chunk = *chunks_[i];
    insist(chunk.count > 0 && chunk.count <= kChunk,
           "a chunk must hold some keys, and not too many");
    insist(lasts_[i] == chunk.keys[chunk.count - 1], "a chunk's last key must be its last");
    for (int at = 0; at < chunk.count; at++) {
      insist(chunk.holes[at]->free, "a live block must not be in the order of holes");
      insist(chunk.keys[at] == key(chunk.holes[at]), "a key must be that of its hole");
      insist(seen == 0 || previous < chunk.keys[at], "holes must be in order");
      previous = chunk.keys[at];
      seen++;
    }
  }
  return seen;
}

}  // namespace dtr
