// Imitates the memory of torch's CUDA allocator. A segment belongs to a stream and a size class.
// Blocks are split and merged, a freed block is not reused before the streams that used it are
// done, and the cache is emptied before a request fails. Source: torch's
// c10/cuda/CUDACachingAllocator.cpp.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "dtr_alloc/pool/csrc/cuda/driver.h"

extern "C" int PyGILState_Ensure();
extern "C" void PyGILState_Release(int);

namespace stand_in {

using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;
using dtr::cuda::Physical;
using dtr::cuda::Pointer;
using Count = std::size_t;

constexpr Count kMib = Count{1} << 20, kAll = ~Count{0};

struct Segment {
  Pointer base;
  Count size;
  cudaStream_t stream;
  bool small;
  Physical physical;
};

struct Block {
  Count size;
  Segment* segment;
  bool live = false;
  std::set<cudaStream_t> uses;
};

struct Settings {
  int takes_python = 0;        // Take Python's lock in get() and put().
  int fails = 0;               // How many requests to refuse,
  int after = 0;               // and how many to serve before.
  void (*during)() = nullptr;  // Runs once, in the next request.
  void (*booked)() = nullptr;  // Runs once, at a request's end, before stats() can be read.
  int lingers = 0;             // The next request ends after so many calls of stats().
};
inline Settings settings;

template <class Function>
Function* driver(const char* name) {
  static void* const library = dlopen(getenv("DTR_ALLOC_LIBCUDA"), RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Pauses, so that a thread that has Python's lock surely runs, then takes this lock. If the caller
// holds a lock that the other thread waits for, both hang, and the test fails.
inline void take_python() {
  if (!settings.takes_python) return;
  usleep(300);
  PyGILState_Release(PyGILState_Ensure());
}

inline void bump(StatArray& stats, std::int64_t by) {
  by > 0 ? stats[0].increase(static_cast<Count>(by)) : stats[0].decrease(static_cast<Count>(-by));
}

class Memory {
 public:
  void* get(Count bytes, cudaStream_t stream) {
    if (bytes == 0) return nullptr;
    take_python();
    if (auto* now = std::exchange(settings.during, nullptr)) now();
    std::unique_lock lock(mutex_);
    const Count size = (bytes + 511) / 512 * 512;
    const bool small = size <= kMib;
    const bool served = settings.after > 0 && settings.after--;
    bool refused = !served && settings.fails > 0 && settings.fails--;
    auto found = refused ? blocks_.end() : fitting(size, stream, small);
    if (!refused && found == blocks_.end()) found = grow(size, stream, small);
    if (!refused && found == blocks_.end()) {
      ++stats_.num_alloc_retries;
      flush();
      found = grow(size, stream, small);
    }
    if (found == blocks_.end()) {
      ++stats_.num_ooms;
      const auto observers = observers_;
      lock.unlock();
      for (const auto& observer : observers) observer(0, bytes, 0, 0);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes);
    }
    Block& block = found->second;
    const Count rest = block.size - size;
    if (small ? rest > 0 : rest > kMib) {
      blocks_[found->first + size] = {rest, block.segment};
      block.size = size;
    }
    block.live = true;
    bump(stats_.allocated_bytes, static_cast<std::int64_t>(block.size));
    bump(stats_.allocation, 1);
    if (auto* now = std::exchange(settings.booked, nullptr)) now();
    const auto address = found->first;
    const int until = reads_ + std::exchange(settings.lingers, 0);
    lock.unlock();
    for (int i = 0; i < 50'000 && reads_ < until; ++i) usleep(100);
    return reinterpret_cast<void*>(address);
  }

  // Frees a block. Only counts an unknown address (a stray): an error here would end the process.
  void put(void* data) {
    if (!data) return;
    take_python();
    const std::lock_guard lock(mutex_);
    ++frees_;
    const auto at = blocks_.find(reinterpret_cast<Pointer>(data));
    if (at == blocks_.end() || !at->second.live) {
      ++strays_;
      return;
    }
    at->second.live = false;
    bump(stats_.allocated_bytes, -static_cast<std::int64_t>(at->second.size));
    bump(stats_.allocation, -1);
    merge(at);
  }

  void uses(void* data, cudaStream_t stream) {  // Once freed, the block waits for this stream.
    const std::lock_guard lock(mutex_);
    const auto at = blocks_.find(reinterpret_cast<Pointer>(data));
    TORCH_CHECK(at != blocks_.end() && at->second.live, "a stream uses what is not there");
    if (stream == at->second.segment->stream) return;
    at->second.uses.insert(stream);
  }

  void flush() {  // Waits for all work, then returns the cache to the driver.
    const std::lock_guard lock(mutex_);
    driver<void()>("fakecuda_finish")();
    for (auto at = blocks_.begin(); at != blocks_.end();) {
      const auto here = at++;
      Segment* segment = here->second.segment;
      if (here->second.live || here->second.size != segment->size) continue;
      driver<int(Pointer, Count)>("cuMemUnmap")(segment->base, segment->size);
      driver<int(Pointer, Count)>("cuMemAddressFree")(segment->base, segment->size);
      driver<int(Physical)>("cuMemRelease")(segment->physical);
      bump(stats_.reserved_bytes, -static_cast<std::int64_t>(segment->size));
      blocks_.erase(here);
      std::erase_if(segments_, [&](const auto& one) { return one.get() == segment; });
    }
  }

  void observe(OutOfMemoryObserver observer) { observers_.push_back(std::move(observer)); }
  void set_fraction(double share) {  // Bounds all segments to this share of the device.
    const std::lock_guard lock(mutex_);
    Count total = 0;
    driver<int(unsigned)>("cuInit")(0);
    driver<int(Count*, int)>("cuDeviceTotalMem_v2")(&total, 0);
    most_ = static_cast<Count>(share * static_cast<double>(total));
  }
  void begin_anew() {
    const std::lock_guard lock(mutex_);
    most_ = kAll;
    strays_ = 0;
  }
  long frees() const { return frees_; }
  long strays() const { return strays_; }  // Frees of unknown addresses.
  DeviceStats stats() const {
    const std::lock_guard lock(mutex_);
    ++reads_;
    return stats_;
  }
  void reset_failures() { stats_.num_ooms = stats_.num_alloc_retries = 0; }
  void reset_peak() { stats_.allocated_bytes[0].reset_peak(); }

 private:
  bool idle(const Block& block) const {
    auto* const queued = driver<long(std::uintptr_t)>("fakecuda_queued");
    return std::all_of(block.uses.begin(), block.uses.end(), [&](cudaStream_t stream) {
      try {
        return queued(reinterpret_cast<std::uintptr_t>(stream)) == 0;
      } catch (const std::out_of_range&) {
        return true;  // The stream was never created.
      }
    });
  }

  std::map<Pointer, Block>::iterator fitting(Count size, cudaStream_t stream, bool small) {
    auto best = blocks_.end();
    for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
      Block& block = at->second;
      if (!block.live && !block.uses.empty() && idle(block)) block.uses.clear();
      const bool ours = block.segment->stream == stream && block.segment->small == small;
      if (block.live || !block.uses.empty() || !ours || block.size < size) continue;
      if (best == blocks_.end() || block.size < best->second.size) best = at;
    }
    return best;
  }

  std::map<Pointer, Block>::iterator grow(Count size, cudaStream_t stream, bool small) {
    Count bytes = (size + 2 * kMib - 1) / (2 * kMib) * (2 * kMib);
    if (!small && size < 10 * kMib) bytes = 20 * kMib;
    if (static_cast<Count>(stats_.reserved_bytes[0].current) + bytes > most_) return blocks_.end();
    dtr::cuda::AllocationProp prop{};
    prop.type = dtr::cuda::kMemoryPinned;
    prop.location = {dtr::cuda::kLocationDevice, 0};
    Segment segment{0, bytes, stream, small, 0};
    driver<int(unsigned)>("cuInit")(0);
    if (driver<int(Physical*, Count, const void*, unsigned long long)>("cuMemCreate")(
            &segment.physical, bytes, &prop, 0)) {
      return blocks_.end();
    }
    driver<int(Pointer*, Count, Count, Pointer, unsigned long long)>("cuMemAddressReserve")(
        &segment.base, bytes, 0, 0, 0);
    driver<int(Pointer, Count, Count, Physical, unsigned long long)>("cuMemMap")(
        segment.base, bytes, 0, segment.physical, 0);
    dtr::cuda::AccessDesc access{};
    access.location = prop.location;
    access.flags = dtr::cuda::kAccessReadWrite;
    driver<int(Pointer, Count, const void*, Count)>("cuMemSetAccess")(segment.base, bytes, &access,
                                                                      1);
    segments_.push_back(std::make_unique<Segment>(segment));
    bump(stats_.reserved_bytes, static_cast<std::int64_t>(bytes));
    return blocks_.insert({segment.base, {bytes, segments_.back().get()}}).first;
  }

  void merge(std::map<Pointer, Block>::iterator at) {
    const auto joins = [](const Block& a, const Block& b) {
      return !a.live && !b.live && a.segment == b.segment;
    };
    const auto join = [&](auto first, auto second) {
      first->second.size += second->second.size;
      first->second.uses.merge(second->second.uses);
      blocks_.erase(second);
      return first;
    };
    if (at != blocks_.begin() && joins(std::prev(at)->second, at->second)) {
      at = join(std::prev(at), at);
    }
    const auto next = std::next(at);
    if (next != blocks_.end() && joins(at->second, next->second)) join(at, next);
  }

  mutable std::recursive_mutex mutex_;
  std::map<Pointer, Block> blocks_;
  std::deque<std::unique_ptr<Segment>> segments_;
  std::vector<OutOfMemoryObserver> observers_;
  DeviceStats stats_{};
  Count most_ = kAll;
  long frees_ = 0, strays_ = 0;
  mutable std::atomic<int> reads_{0};
};

}  // namespace stand_in
