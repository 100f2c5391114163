// The pool's figures in the words of torch.cuda.memory_stats and memory_snapshot.
//
// A segment is a run of committed pages; "reserved" is what is committed, "allocated" and "active"
// are bytes in live blocks, rounded up to 512, as are the requested ones. There is no small and
// large pool: everything is in the aggregate and in the large one. A retry is an eviction.

#include "runtime/csrc/live_cuda/device_memory.h"

namespace dtr {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::SegmentInfo;

StatArray both(std::int64_t current, std::int64_t peak, std::int64_t allocated,
               std::int64_t freed) {
  Stat stat;
  stat.current = current;
  stat.peak = std::max(peak, current);
  stat.allocated = allocated;
  stat.freed = freed;
  StatArray array;
  array[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)] = stat;
  array[static_cast<std::size_t>(c10::CachingAllocator::StatType::LARGE_POOL)] = stat;
  return array;
}

SegmentInfo empty_segment(const DeviceMemory& memory, Bytes begin, Bytes end) {
  SegmentInfo segment;
  segment.device = memory.device;
  segment.address = memory.pool.arena().base() + static_cast<std::uintptr_t>(begin);
  segment.total_size = static_cast<std::size_t>(end - begin);
  segment.is_large = segment.is_expandable = true;
  return segment;
}

void add_block(SegmentInfo& segment, Bytes size, bool live, bool active) {
  BlockInfo block;
  block.size = block.requested_size = static_cast<std::size_t>(size);
  block.allocated = live;
  block.active = active;
  segment.blocks.push_back(std::move(block));
  if (live) segment.allocated_size += static_cast<std::size_t>(size);
  if (active) segment.active_size += static_cast<std::size_t>(size);
  segment.requested_size = segment.allocated_size;
}

// Each block of the graph is a segment.
std::vector<SegmentInfo> segments_of_graph(const DeviceMemory& memory, GraphMemory::Id id) {
  std::vector<SegmentInfo> segments;
  for (const Block* block : memory.graphs.live(id)) {
    segments.push_back(empty_segment(memory, block->offset, block->offset + block->size));
    segments.back().owner_private_pool_id = id;
    add_block(segments.back(), block->size, true, true);
  }
  return segments;
}

// Each run of committed pages is a segment.
std::vector<SegmentInfo> segments_of_pool(const DeviceMemory& memory) {
  std::vector<SegmentInfo> segments;
  const std::vector<Block> blocks = memory.pool.snapshot();
  auto block = blocks.begin();
  for (auto [begin, end] : memory.pool.committed_runs()) {
    segments.push_back(empty_segment(memory, begin, end));
    while (block != blocks.end() && block->offset + block->size <= begin) ++block;
    for (; block != blocks.end() && block->offset < end; ++block) {
      const Bytes from = std::max(block->offset, begin);
      const Bytes to = std::min(block->offset + block->size, end);
      add_block(segments.back(), to - from, !block->free && !block->quarantined, !block->free);
      if (block->offset + block->size > end) break;  // A hole that reaches into the next run.
    }
  }
  return segments;
}

}  // namespace

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::stats() const {
  PoolStats now = pool.stats();
  c10::CachingDeviceAllocator::DeviceStats stats;
  std::int64_t segments = static_cast<std::int64_t>(pool.committed_runs().size());
  const PoolStats& then = forgotten_.pool;
  const Bytes freed = (now.allocated - now.live) - (then.allocated - then.live);
  stats.allocation = both(now.live_blocks, now.peak_blocks, now.allocations - then.allocations,
                          now.frees - then.frees);
  stats.active = stats.allocation;
  stats.allocated_bytes = both(now.live, now.peak, now.allocated - then.allocated, freed);
  stats.active_bytes = stats.requested_bytes = stats.allocated_bytes;
  stats.segment = both(segments, segments, segments, 0);
  stats.reserved_bytes = both(now.committed, now.peak_committed, now.committed, 0);
  Bytes free = std::max<Bytes>(now.committed - now.live, 0);
  stats.inactive_split_bytes = both(free, free, free, 0);
  stats.num_ooms = out_of_memory - forgotten_.out_of_memory;
  stats.num_alloc_retries = evictions() - forgotten_.evictions;
  return stats;
}

void DeviceMemory::reset_accumulated() { forgotten_ = {pool.stats(), out_of_memory, evictions()}; }

std::int64_t DeviceMemory::evictions() const { return session ? session->stats().evictions : 0; }

std::vector<SegmentInfo> DeviceMemory::segments(GraphMemory::Id id) const {
  return id == GraphMemory::Id{0, 0} ? segments_of_pool(*this) : segments_of_graph(*this, id);
}

}  // namespace dtr
