// Tells torch.profiler of a pool's blocks, if it profiles memory. Torch's own allocators tell it of
// theirs.

#pragma once

#include <c10/core/Allocator.h>

#include <atomic>

#include "dtr_alloc/pool/csrc/pool.h"

namespace dtr {

// A block has just been made (`change` is its size), or will be freed next (its size, negative).
inline void tell_profiler(Memory& memory, const Block& block, Bytes change, c10::Device device) {
  // Whether it was told of a block. Before, a free does not ask the profiler: asking takes 10 ns.
  static std::atomic<bool> told = false;
  if (change < 0 && !told.load(std::memory_order_relaxed)) return;
  if (!c10::memoryProfilingEnabled() || !memory.pool()) [[likely]]
    return;
  told.store(true, std::memory_order_relaxed);
  const Bytes live = memory.live() + (change < 0 ? change : 0);
  c10::reportMemoryUsageToProfiler(memory.data(&block), change, static_cast<std::size_t>(live),
                                   static_cast<std::size_t>(memory.stats().committed), device);
}

}  // namespace dtr
