// Holds the memory of one CUDA device for torch's allocator interface: a pool, the session that
// evicts from it, the memory of captured graphs, and the counters behind torch's statistics. It is
// made at the device's first use, so that no driver or GPU is needed until then. It is never
// destroyed, because tensors may die after this library's static objects.

#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>

#include "dtr_alloc/pool/csrc/graph_memory.h"
#include "runtime/csrc/live/session/session.h"

namespace dtr {

// Describes a CUDA device to a session. `deleter` frees tensors that the session does not track.
SessionDevice session_device(c10::DeviceIndex index, at::Allocator& allocator,
                             c10::DeleterFnPtr deleter);

struct DeviceMemory {
  // Throws if a driver call fails. With `rematerialize`, calls Scope::claim(), which may throw.
  DeviceMemory(const SessionOptions& options, c10::DeviceIndex device, at::Allocator& allocator,
               bool rematerialize);

  void* allocate(std::size_t bytes, Stream stream);
  void free(void* data);
  static DeviceMemory* owner_of(const void* data);  // Takes no lock. Null if `data` is not ours.
  static void deleter(void* data);                  // Frees an untracked tensor.

  // Graph capture and MemPools: see GraphMemory.
  void begin_capture(GraphMemory::Id id, GraphMemory::Filter filter);
  void end_capture(GraphMemory::Id id);

  void retire_stream(Stream stream);
  // Besides the budget, bounds the pool by a fraction of the device's memory.
  void set_fraction(double fraction);

  c10::CachingDeviceAllocator::DeviceStats stats() const;
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> segments(GraphMemory::Id id) const;
  void reset_accumulated();

  const c10::DeviceIndex device;
  const Bytes budget;
  const std::unique_ptr<Session> session;  // Null without rematerialization.
  const Pool::Handle own;                  // Null with rematerialization.
  Pool& pool;
  GraphMemory graphs;
  double fraction = 1;
  std::atomic<std::int64_t> out_of_memory{0};

 private:
  [[noreturn]] void refuse(Bytes asked) const;
  std::int64_t evictions() const;
  struct {
    PoolStats pool;
    std::int64_t out_of_memory, evictions;
  } forgotten_{};  // The counts at the last reset_accumulated().
};

}  // namespace dtr
