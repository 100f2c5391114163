// Allocates records: Values, Ops, and other small objects that each operator of the program needs.
//
// If malloc made the records, they would lie between the program's tensors on the host, and malloc
// could not merge the memory of freed tensors. An operator would also take some 50 ns longer. So
// records lie in slabs. A record's size is rounded up to 16 bytes. A new record takes the place of
// the last freed record of this size or, if there is none, the next place in the newest slab. Slabs
// live as long as the Records object, since each step needs as many records as the one before.
// Under the address or thread sanitizer, malloc allocates each record, so that the sanitizer finds
// uses after free.
//
// Not thread-safe: the owner needs a lock.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace dtr {

class Records {
 public:
  Records() = default;
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  void* allocate(std::size_t bytes) {
    const std::size_t granules = (bytes + kGranule - 1) / kGranule;
    void* record = granules > kMost ? ::operator new(bytes) : place(granules);
    ++used_;
    return record;
  }

  void free(void* record, std::size_t bytes) {
    const std::size_t granules = (bytes + kGranule - 1) / kGranule;
    --used_;
    if (granules > kMost) return ::operator delete(record);
    gone_[granules] = new (record) Gone{gone_[granules]};
  }

  template <class Record>
  Record* make(const Record& record) {
    static_assert(std::is_trivially_destructible_v<Record>);
    return new (allocate(sizeof(Record))) Record(record);
  }
  template <class Record>
  void free(Record* record) {
    static_assert(std::is_trivially_destructible_v<Record>);
    free(record, sizeof(Record));
  }

  std::int64_t used() const { return used_; }  // Live records.

 private:
  struct Gone {
    Gone* before;
  };

  void* place(std::size_t granules) {
    Gone*& last = gone_[granules];
    if (last) return std::exchange(last, last->before);
    const std::size_t size = granules * kGranule;
    if (size > left_) {
      slabs_.push_back(std::make_unique_for_overwrite<std::byte[]>(kSlab));
      left_ = kSlab;
    }
    left_ -= size;
    return slabs_.back().get() + left_;
  }

  static constexpr std::size_t kGranule = 16, kSlab = 64 << 10;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr std::size_t kMost = 0;
#else
  static constexpr std::size_t kMost = 64;  // In 16-byte units; few are larger.
#endif

  std::array<Gone*, kMost + 1> gone_{};
  std::vector<std::unique_ptr<std::byte[]>> slabs_;
  std::size_t left_ = 0;  // Bytes left in the last slab.
  std::int64_t used_ = 0;
};

}  // namespace dtr
