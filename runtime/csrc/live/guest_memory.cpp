#include "runtime/csrc/live/guest_memory.h"

#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dtr_alloc/csrc/insist.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace dtr {
namespace {

struct Counted : Block {
  at::DataPtr data;
  GuestMemory* memory = nullptr;  // Null: counted no longer.
};

// The blocks' own memory comes in slabs. One asked of malloc for each block would lie between the
// tensors' memory, and hold up what malloc joins and gives back.
struct Table {
  static constexpr std::size_t kSlab = 4096;

  std::mutex mutex;
  ska::flat_hash_map<const void*, Counted*> blocks;
  std::vector<std::unique_ptr<Counted[]>> slabs;
  Block* spare = nullptr;  // A list, by `next`.

  // A spare one, which stays spare until take().
  Counted& next() {
    if (!spare) {
      slabs.push_back(std::make_unique<Counted[]>(kSlab));
      for (std::size_t i = 0; i < kSlab; ++i) put_back(slabs.back()[i]);
    }
    return static_cast<Counted&>(*spare);
  }
  void take() { spare = spare->next; }
  void put_back(Counted& block) {
    block.next = spare;
    spare = &block;
  }
};

// Never destroyed: tensors may die after the destructors of this file's statics have run.
Table& table() {
  static Table& instance = *new Table;
  return instance;
}

}  // namespace

Memory::Handle GuestMemory::create(at::Allocator& allocator, Bytes budget) {
  insist(budget > 0 && budget <= kLargest, "a guest's budget must be above 0 and at most 16 TiB");
  return Handle(new GuestMemory(allocator, budget));
}

void GuestMemory::lock_all() { table().mutex.lock(); }

void GuestMemory::unlock_all() { table().mutex.unlock(); }

bool GuestMemory::holds(const void* data) {
  const std::lock_guard lock(table().mutex);
  return table().blocks.count(data) > 0;
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
  const Bytes rounded = size > kLargest ? size : round_to_granule(std::max(size, Bytes{1}));
  const auto fits = [&] { return rounded <= limit_ - live_; };
  if (!fits()) {
    ++failures_;
    return nullptr;
  }
  at::DataPtr data = ask(std::max(size, Bytes{1}));  // Of nothing there is no address to know.
  const std::lock_guard lock(table().mutex);
  if (!fits()) {
    ++failures_;
    return nullptr;
  }
  Counted& block = table().next();
  const bool fresh = table().blocks.emplace(data.get(), &block).second;
  insist(fresh, "an allocator must not hand out memory that is in use");
  table().take();
  block.offset = static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(data.get()));
  block.size = rounded;
  block.free = false;
  block.data = std::move(data);
  block.memory = this;
  live_ += rounded;
  peak_ = std::max(peak_, live_.load());
  allocated_ += rounded;
  ++allocations_;
  peak_blocks_ = std::max(peak_blocks_, allocations_ - frees_);
  return &block;
}

void GuestMemory::uncount(Bytes size) {
  live_ -= size;
  ++frees_;
}

// The memory itself is given back after the lock.
void GuestMemory::free(const void* data) {
  at::DataPtr freed;
  GuestMemory* over = nullptr;
  {
    const std::lock_guard lock(table().mutex);
    const auto found = table().blocks.find(data);
    insist(found != table().blocks.end(), "a block must not be freed twice");
    Counted& block = *found->second;
    if (GuestMemory* memory = block.memory) {
      memory->uncount(block.size);
      if (memory->over()) over = memory;
    }
    freed = std::move(block.data);
    block = {};
    table().blocks.erase(found);
    table().put_back(block);
  }
  delete over;
}

Block* GuestMemory::find(const void* data) const {
  const std::lock_guard lock(table().mutex);
  const auto found = table().blocks.find(data);
  return found != table().blocks.end() && found->second->memory == this ? found->second : nullptr;
}

bool GuestMemory::let_go(Block* block) {
  const std::lock_guard lock(table().mutex);
  static_cast<Counted*>(block)->memory = nullptr;
  uncount(block->size);
  return true;
}

void GuestMemory::retire() {
  {
    const std::lock_guard lock(table().mutex);
    retired_ = true;
    if (!over()) return;
  }
  delete this;
}

PoolStats GuestMemory::stats() const {
  const std::lock_guard lock(table().mutex);
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
  const std::lock_guard lock(table().mutex);
  peak_ = live_;
  peak_blocks_ = allocations_ - frees_;
}

void GuestMemory::set_limit(Bytes limit) {
  insist(limit >= 0 && limit <= kLargest, "a guest's limit must be within 0 and 16 TiB");
  const std::lock_guard lock(table().mutex);  // Nobody is between the look and the count.
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
  const std::lock_guard lock(table().mutex);
  Bytes live = 0;
  std::int64_t count = 0;
  for (const auto& [address, block] : table().blocks) {
    insist(block->data.get() == address && this->data(block) == address,
           "a block must be found by its address");
    if (block->memory != this) continue;
    insist(block->size > 0 && block->size % kGranule == 0, "a block must be whole granules");
    live += block->size;
    ++count;
  }
  insist(live == live_, "live bytes must be the sum of the live blocks");
  insist(count == allocations_ - frees_, "every allocated block must be live until freed");
  insist(live_ <= peak_, "the peak must not be below the live bytes");
}

}  // namespace dtr
