#include "runtime/csrc/live/machine/guest_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dtr_alloc/pool/csrc/insist.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace dtr {
namespace {

struct Counted : Block {
  at::DataPtr data;
  GuestMemory* memory = nullptr;  // Null: counted no longer.
  bool listed = false;            // Found by its address.
};

// The blocks' own memory comes in slabs. One asked of malloc for each block would lie between the
// tensors' memory, and hold up what malloc joins and gives back. By `next` a block is in the list
// of its bucket, where no session tracks it, or in that of the spare ones. A bucket for each block
// is made with the slab, so nothing but a new slab asks for memory.
struct CountedBlocks {
  static constexpr std::size_t kSlab = 4096;

  std::mutex mutex;
  std::vector<std::unique_ptr<Counted[]>> slabs;
  std::vector<Block*> buckets;  // As many as a power of two.
  Block* spare = nullptr;

  // A spare one, which stays spare until take().
  Counted& next() {
    if (!spare) grow();
    return static_cast<Counted&>(*spare);
  }
  void take() { spare = spare->next; }
  void put_back(Counted& block) {
    block.next = spare;
    spare = &block;
  }

  Counted* find(const void* data) {
    for (Block* at = buckets.empty() ? nullptr : bucket(data); at; at = at->next) {
      if (static_cast<Counted*>(at)->data.get() == data) return static_cast<Counted*>(at);
    }
    return nullptr;
  }
  void list(Counted& block) {
    Block*& first = bucket(block.data.get());
    block.next = first;
    first = &block;
    block.listed = true;
  }
  void unlist(Counted& block) {
    Block** at = &bucket(block.data.get());
    while (*at != &block) at = &(*at)->next;
    *at = block.next;
    block.listed = false;
  }

 private:
  Block*& bucket(const void* data) {
    constexpr std::uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
    const auto hash = reinterpret_cast<std::uintptr_t>(data) * kGoldenRatio;
    return buckets[(hash >> 32) & (buckets.size() - 1)];
  }

  void grow() {
    auto slab = std::make_unique<Counted[]>(kSlab);
    const std::size_t wanted = std::bit_ceil((slabs.size() + 1) * kSlab);
    if (wanted > buckets.size()) spread_over(std::vector<Block*>(wanted));
    slabs.push_back(std::move(slab));
    for (std::size_t i = 0; i < kSlab; ++i) put_back(slabs.back()[i]);
  }
  void spread_over(std::vector<Block*> more) {
    more.swap(buckets);
    for (Block* at : more) {
      while (at) list(static_cast<Counted&>(*std::exchange(at, at->next)));
    }
  }
};

// Never destroyed: tensors may die after the destructors of this file's statics have run.
CountedBlocks& counted_blocks() {
  static CountedBlocks& instance = *new CountedBlocks;
  return instance;
}

}  // namespace

Memory::Handle GuestMemory::create(at::Allocator& allocator, Bytes budget) {
  insist(budget > 0 && budget <= kLargestBudget,
         "a guest's budget must be above 0 and at most 16 TiB");
  return Handle(new GuestMemory(allocator, budget));
}

void GuestMemory::lock_all() { counted_blocks().mutex.lock(); }

void GuestMemory::unlock_all() { counted_blocks().mutex.unlock(); }

bool GuestMemory::holds(const void* data) {
  const std::lock_guard lock(counted_blocks().mutex);
  return counted_blocks().find(data) != nullptr;
}

// What the machine has not is no error of the budget's.
at::DataPtr GuestMemory::ask(Bytes size) {
  try {
    return allocator_.allocate(static_cast<std::size_t>(size));
  } catch (const c10::Error& error) {
    throw MachineIsFull(error.what_without_backtrace());
  }
}

// The budget is looked at before memory is asked for, and again once the block is there, since
// another thread may have been quicker. Then the block goes back.
Block* GuestMemory::allocate(Bytes size, Fit, Stream) {
  if (size < 0) throw std::invalid_argument("the size of a block must not be negative");
  const Bytes rounded = size > kLargestBudget ? size : round_to_granule(std::max(size, Bytes{1}));
  const auto fits = [&] { return rounded <= limit_ - live_; };
  if (!fits()) {
    ++failures_;
    return nullptr;
  }
  at::DataPtr data = ask(std::max(size, Bytes{1}));  // Of nothing there is no address to know.
  const std::lock_guard lock(counted_blocks().mutex);
  if (!fits()) {
    ++failures_;
    return nullptr;
  }
  insist(!counted_blocks().find(data.get()),
         "an allocator must not hand out memory that is in use");
  Counted& block = counted_blocks().next();
  counted_blocks().take();
  block.data = std::move(data);
  counted_blocks().list(block);
  block.offset = static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(block.data.get()));
  block.size = rounded;
  block.free = false;
  block.memory = this;
  live_ += rounded;
  peak_ = std::max(peak_, live_.load());
  allocated_ += rounded;
  ++allocations_;
  peak_blocks_ = std::max(peak_blocks_, allocations_ - frees_);
  tell_allocated(block);
  return &block;
}

void GuestMemory::uncount(const Block& block) {
  live_ -= block.size;
  ++frees_;
  tell_freed(block);
}

// The memory itself is given back after the lock.
void GuestMemory::free(Block& block, std::unique_lock<std::mutex> lock) {
  auto& counted = static_cast<Counted&>(block);
  insist(!counted.free, "a block must not be freed twice");
  GuestMemory* memory = counted.memory;
  if (memory) memory->uncount(counted);
  const std::unique_ptr<GuestMemory> over(memory && memory->over() ? memory : nullptr);
  if (counted.listed) counted_blocks().unlist(counted);
  const at::DataPtr freed = std::move(counted.data);
  counted = {};
  counted_blocks().put_back(counted);
  lock.unlock();
}

void GuestMemory::free(const void* data) {
  std::unique_lock lock(counted_blocks().mutex);
  Counted* const block = counted_blocks().find(data);
  insist(block != nullptr, "what is freed must be a live block that no session tracks");
  free(*block, std::move(lock));
}

void GuestMemory::free(Block* block) { free(*block, std::unique_lock(counted_blocks().mutex)); }

Block* GuestMemory::find(const void* data) const {
  const std::lock_guard lock(counted_blocks().mutex);
  Counted* const block = counted_blocks().find(data);
  return block && block->memory == this ? block : nullptr;
}

Block* GuestMemory::adopt(void* data, Bytes) {
  const std::lock_guard lock(counted_blocks().mutex);
  Counted* const block = counted_blocks().find(data);
  if (!block || block->memory != this) return nullptr;
  counted_blocks().unlist(*block);
  return block;
}

void GuestMemory::disown(Block* block) {
  const std::lock_guard lock(counted_blocks().mutex);
  auto& counted = *static_cast<Counted*>(block);
  insist(!counted.free, "a block that is disowned must be live");
  if (!counted.listed) counted_blocks().list(counted);
}

bool GuestMemory::let_go(Block* block) {
  const std::lock_guard lock(counted_blocks().mutex);
  static_cast<Counted*>(block)->memory = nullptr;
  uncount(*block);
  return true;
}

void GuestMemory::retire() {
  {
    const std::lock_guard lock(counted_blocks().mutex);
    retired_ = true;
    if (!over()) return;
  }
  delete this;
}

PoolStats GuestMemory::stats() const {
  const std::lock_guard lock(counted_blocks().mutex);
  const Bytes live = live_, limit = limit_;
  return {.budget = limit,
          .live = live,
          .peak = peak_,
          .committed = live,
          .largest_hole = std::max<Bytes>(limit - live, 0),
          .external_fragmentation = 0,
          .live_blocks = allocations_ - frees_,
          .allocations = allocations_,
          .frees = frees_,
          .failures = failures_,
          .remaps = 0,
          .quarantined = 0,
          .stream_waits = 0,
          .allocated = allocated_,
          .peak_committed = peak_,
          .peak_blocks = peak_blocks_};
}

void GuestMemory::reset_peak() {
  const std::lock_guard lock(counted_blocks().mutex);
  peak_ = live_;
  peak_blocks_ = allocations_ - frees_;
}

void GuestMemory::set_limit(Bytes limit) {
  insist(limit >= 0 && limit <= kLargestBudget, "a guest's limit must be within 0 and 16 TiB");
  const std::lock_guard lock(counted_blocks().mutex);  // Nobody is between the look and the count.
  limit_ = limit;
}

// What malloc keeps of freed blocks goes back to the system, where malloc is glibc's. How much that
// was it does not say.
Bytes GuestMemory::trim() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  return 0;
}

void GuestMemory::check() const {
  const std::lock_guard lock(counted_blocks().mutex);
  Bytes live = 0;
  std::int64_t count = 0;
  for (const auto& slab : counted_blocks().slabs) {
    for (const Counted& block : std::span(slab.get(), CountedBlocks::kSlab)) {
      insist(counted_blocks().find(block.data.get()) == (block.listed ? &block : nullptr),
             "a block must be found by its address where no session tracks it, and only there");
      insist(block.free == (block.data.get() == nullptr), "a block must have memory while live");
      if (block.memory != this) continue;
      insist(data(&block) == block.data.get(), "a block must say where it lies");
      insist(block.size > 0 && block.size % kGranule == 0, "a block must be whole granules");
      live += block.size;
      ++count;
    }
  }
  insist(live == live_, "live bytes must be the sum of the live blocks");
  insist(count == allocations_ - frees_, "every allocated block must be live until freed");
  insist(live_ <= peak_, "the peak must not be below the live bytes");
}

}  // namespace dtr
