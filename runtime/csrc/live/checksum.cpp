#include "runtime/csrc/live/checksum.h"

#include <cstring>

namespace dtr {
namespace {

const char* content(const c10::StorageImpl* storage) {
  return static_cast<const char*>(
      const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks().get());
}

// Each step is a bijection of the state and of the word.
std::uint64_t checksum(const char* bytes, std::size_t size) {
  std::uint64_t sum = size;
  const auto mix = [&sum](std::uint64_t word) {
    sum = (sum ^ word) * 0x9e3779b97f4a7c15;
    sum ^= sum >> 32;
  };
  for (; size >= sizeof(std::uint64_t); bytes += sizeof(std::uint64_t), size -= 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes, sizeof word);
    mix(word);
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, bytes, size);
  mix(rest);
  return sum;
}

}  // namespace

std::uint64_t checksum(const c10::StorageImpl* storage) {
  return content(storage) ? checksum(content(storage), storage->nbytes()) : 0;
}

}  // namespace dtr
