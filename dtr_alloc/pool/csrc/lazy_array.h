// Keeps a zeroed array that never moves, and whose pages take no memory until they are touched. The
// pool's tables are such arrays. They have an entry for every 512 bytes of an arena, but most
// programs touch only a part. Huge pages are off, since with them one touch would take 2 MiB.

#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace dtr {

template <class T>
class LazyArray {
 public:
  explicit LazyArray(std::int64_t count) : bytes_(count * sizeof(T)) {
    void* range = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw std::bad_alloc();
    madvise(range, bytes_, MADV_NOHUGEPAGE);
    data_ = static_cast<T*>(range);
  }
  ~LazyArray() { munmap(data_, bytes_); }
  LazyArray(const LazyArray&) = delete;
  LazyArray& operator=(const LazyArray&) = delete;

  T& operator[](std::int64_t i) const { return data_[i]; }
  T* data() const { return data_; }

 private:
  const std::int64_t bytes_;
  T* data_;
};

}  // namespace dtr
