// Computes a checksum of host memory, to notice changes: different contents have the same checksum
// with a chance of about 2^-64. The method is wyhash's (https://github.com/wangyi-fudan/wyhash). A
// step mixes one word with a constant, another with the sum so far, multiplies them, and combines
// the halves of the product. It takes one multiplication for 16 bytes: bandwidth sets the speed.

#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/csrc/live/storages/storage_table.h"

namespace dtr {

inline std::uint64_t folded_product(std::uint64_t one, std::uint64_t other) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(one) * other;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t checksum(const c10::StorageImpl* storage) {  // Returns 0 if it has no memory.
  constexpr std::uint64_t kFirst = 0xa0761d6478bd642f, kSecond = 0xe7037ed1a0b428db;
  const auto* bytes = static_cast<const char*>(pointer_of(storage).get());
  if (!bytes) return 0;
  std::size_t size = storage->nbytes();
  std::uint64_t sum = kFirst ^ size;
  std::uint64_t words[2];
  for (; size >= sizeof words; bytes += sizeof words, size -= sizeof words) {
    std::memcpy(words, bytes, sizeof words);
    sum = folded_product(words[0] ^ kSecond, words[1] ^ sum);
  }
  words[0] = words[1] = 0;
  std::memcpy(words, bytes, size);
  return folded_product(words[0] ^ kSecond, words[1] ^ sum);
}

}  // namespace dtr
