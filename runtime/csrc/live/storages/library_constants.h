// Constants in a library's memory, found by storage and by address.
//
// A library may give the same memory to several storages (from_numpy, DLPack), so a write through
// one of them, or by an operator into the library's array, changes them all. A program may keep
// 100,000 such constants (images in NumPy's memory) and write hundreds of parameters a step, so the
// search before a write must not visit all of them. So each size class (a power of two in bytes)
// has a map, ordered by address: a constant of less than 2^k bytes reaches an address only if it
// begins less than 2^k bytes before. A search costs a look-up in each map, and a step per constant
// nearby. Before a write to a library's storage, constants.cpp visits all other constants, too.

#pragma once

#include <c10/util/flat_hash_map.h>

#include <bit>
#include <cstdint>
#include <map>

#include "runtime/csrc/live/storages/storage_table.h"

namespace dtr {

class LibraryConstants {
 public:
  void add(const c10::StorageImpl* storage, Value& constant) {
    const std::size_t bytes = storage->nbytes();
    const int size = std::bit_width(bytes);
    places_[storage] = {size, by_size_[size].insert({begin_of(storage), {bytes, &constant}})};
  }
  Value* find(const c10::StorageImpl* storage) const {
    auto found = places_.find(storage);
    return found == places_.end() ? nullptr : found->second.at->second.constant;
  }
  void remove(const c10::StorageImpl* storage) {
    auto found = places_.find(storage);
    if (found == places_.end()) return;
    auto size = by_size_.find(found->second.size);
    size->second.erase(found->second.at);
    if (size->second.empty()) by_size_.erase(size);
    places_.erase(found);
  }

  std::size_t count() const { return places_.size(); }
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& [storage, place] : places_) visit(place.at->second.constant);
  }
  // Calls `visit(constant)` for each that has a byte of the storage's memory.
  template <typename Visit>
  void over(const c10::StorageImpl* storage, Visit visit) const {
    const std::uintptr_t begin = begin_of(storage), end = begin + storage->nbytes();
    for (const auto& [size, places] : by_size_) {
      const std::uintptr_t before = std::uintptr_t{1} << size;
      auto at = places.upper_bound(begin > before ? begin - before : 0);
      for (; at != places.end() && at->first < end; ++at) {
        if (begin < at->first + at->second.bytes) visit(at->second.constant);
      }
    }
  }

 private:
  struct Filed {
    std::size_t bytes;
    Value* constant;
  };
  using ByAddress = std::multimap<std::uintptr_t, Filed>;
  struct Place {
    int size;  // The size class: bit_width of the bytes.
    ByAddress::iterator at;
  };

  static std::uintptr_t begin_of(const c10::StorageImpl* storage) {
    return reinterpret_cast<std::uintptr_t>(pointer_of(storage).get());
  }

  std::map<int, ByAddress> by_size_;
  ska::flat_hash_map<const c10::StorageImpl*, Place> places_;
};

}  // namespace dtr
