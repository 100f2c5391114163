// Whether memory is what it was: two contents have the same checksum by a chance of 2^-64 or so.
// wyhash's way: the product of two words, each mixed with a constant or with what came before, and
// its halves folded (https://github.com/wangyi-fudan/wyhash). A multiplication for 16 bytes, so
// memory sets the pace. Of host memory alone.

#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>

namespace dtr {

std::uint64_t checksum(const c10::StorageImpl* storage);  // 0 where it has no memory.

}  // namespace dtr
