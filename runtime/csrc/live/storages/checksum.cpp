#include "runtime/csrc/live/storages/checksum.h"

#include <cstring>

namespace dtr {
namespace {

const char* content(const c10::StorageImpl* storage) {
  return static_cast<const char*>(
      const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks().get());
}

std::uint64_t mix(std::uint64_t one, std::uint64_t other) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(one) * other;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t checksum(const char* bytes, std::size_t size) {
  constexpr std::uint64_t kFirst = 0xa0761d6478bd642f, kSecond = 0xe7037ed1a0b428db;
  std::uint64_t sum = kFirst ^ size;
  std::uint64_t words[2];
  for (; size >= sizeof words; bytes += sizeof words, size -= sizeof words) {
    std::memcpy(words, bytes, sizeof words);
    sum = mix(words[0] ^ kSecond, words[1] ^ sum);
  }
  words[0] = words[1] = 0;
  std::memcpy(words, bytes, size);
  return mix(words[0] ^ kSecond, words[1] ^ sum);
}

}  // namespace

std::uint64_t checksum(const c10::StorageImpl* storage) {
  return content(storage) ? checksum(content(storage), storage->nbytes()) : 0;
}

}  // namespace dtr
