#include "runtime/csrc/live/machine/guest_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "dtr_alloc/pool/csrc/insist.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace dtr {
namespace {

class GuestMemory;

struct Counted : Block {
  at::DataPtr data;
  GuestMemory* memory = nullptr;  // Null: counted no longer.
  bool tracked = false;           // By a session, whose value knows the block.
};

// All live blocks, by their addresses. The blocks' own memory comes in slabs: asked of malloc for
// each block, it would lie between the tensors' memory, and hold up what malloc joins and gives
// back.
struct Table {
  std::mutex mutex;
  std::pmr::unsynchronized_pool_resource slabs;
  std::pmr::unordered_map<const void*, Counted> blocks{&slabs};

  // Null where a session tracks it.
  Counted* find(const void* data) {
    const auto at = blocks.find(data);
    return at == blocks.end() || at->second.tracked ? nullptr : &at->second;
  }
};

// Never destroyed: tensors may die after the destructors of this file's statics have run.
Table& table() {
  static Table& instance = *new Table;
  return instance;
}

using TableLock = std::unique_lock<std::mutex>;

class GuestMemory final : public Memory {
 public:
  GuestMemory(at::Allocator& allocator, Bytes budget)
      : Memory(0), allocator_(allocator), limit_(budget) {
    insist(budget > 0 && budget <= kLargest, "a guest's budget must be above 0 and at most 16 TiB");
  }

  // The budget is looked at before memory is asked for, and again once the block is there, since
  // another thread may have been quicker. Then the block goes back.
  Block* allocate(Bytes size, Fit, Stream) override {
    if (size < 0) throw std::invalid_argument("the size of a block must not be negative");
    const Bytes rounded = size > kLargest ? size : round_to_granule(std::max(size, Bytes{1}));
    const auto fits = [&] { return rounded <= limit_ - live_; };
    if (!fits()) {
      ++failures_;
      return nullptr;
    }
    at::DataPtr data = ask(std::max(size, Bytes{1}));  // Of nothing there is no address to know.
    const TableLock lock(table().mutex);
    if (!fits()) {
      ++failures_;
      return nullptr;
    }
    const auto [at, is_new] = table().blocks.try_emplace(data.get());
    insist(is_new, "an allocator must not hand out memory that is in use");
    Counted& block = at->second;
    block.data = std::move(data);
    block.offset = static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(block.data.get()));
    block.size = rounded;
    block.free = false;
    block.memory = this;
    live_ += rounded;
    peak_ = std::max(peak_, live_.load());
    allocated_ += rounded;
    ++allocations_;
    peak_blocks_ = std::max(peak_blocks_, allocations_ - frees_);
    return &block;
  }

  void free(Block* block) override {
    free(static_cast<Counted&>(*block), TableLock(table().mutex));
  }
  // The memory itself is given back after the lock.
  static void free(Counted& counted, TableLock lock) {
    GuestMemory* memory = counted.memory;
    if (memory) memory->uncount(counted.size);
    const std::unique_ptr<GuestMemory> over(memory && memory->over() ? memory : nullptr);
    const at::DataPtr freed = std::move(counted.data);
    insist(table().blocks.erase(freed.get()) == 1, "a block must not be freed twice");
    lock.unlock();
  }

  Block* find(const void* data) const override {
    const TableLock lock(table().mutex);
    Counted* const block = table().find(data);
    return block && block->memory == this ? block : nullptr;
  }

  Block* adopt(void* data, Bytes) override {
    const TableLock lock(table().mutex);
    Counted* const block = table().find(data);
    if (!block || block->memory != this) return nullptr;
    block->tracked = true;
    return block;
  }

  void disown(Block* block) override {
    const TableLock lock(table().mutex);
    static_cast<Counted*>(block)->tracked = false;
  }

  bool let_go(Block* block) override {
    const TableLock lock(table().mutex);
    static_cast<Counted*>(block)->memory = nullptr;
    uncount(block->size);
    return true;
  }

  Bytes budget() const override { return limit_; }
  Bytes largest_budget() const override { return kLargest; }
  Bytes live() const override { return live_; }

  PoolStats stats() const override {
    const TableLock lock(table().mutex);
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

  void reset_peak() override {
    const TableLock lock(table().mutex);
    peak_ = live_;
    peak_blocks_ = allocations_ - frees_;
  }

  void set_limit(Bytes limit) override {
    insist(limit >= 0 && limit <= kLargest, "a guest's limit must be within 0 and 16 TiB");
    const TableLock lock(table().mutex);  // Nobody is between the look and the count.
    limit_ = limit;
  }

  // What malloc keeps of freed blocks goes back to the system, where malloc is glibc's. How much
  // that was it does not say.
  Bytes trim() override {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    return 0;
  }

  void check() const override {
    const TableLock lock(table().mutex);
    Bytes live = 0;
    std::int64_t count = 0;
    for (const auto& [address, block] : table().blocks) {
      insist(block.data.get() == address, "a block must be found by its address");
      if (block.memory != this) continue;
      insist(data(&block) == address, "a block must say where it lies");
      insist(block.size > 0 && block.size % kGranule == 0, "a block must be whole granules");
      live += block.size;
      ++count;
    }
    insist(live == live_, "live bytes must be the sum of the live blocks");
    insist(count == allocations_ - frees_, "every allocated block must be live until freed");
    insist(live_ <= peak_, "the peak must not be below the live bytes");
  }

 private:
  static constexpr Bytes kLargest = Bytes{16} << 40;  // LARGEST_BUDGET (size.py).

  void retire() override {
    {
      const TableLock lock(table().mutex);
      retired_ = true;
      if (!over()) return;
    }
    delete this;
  }
  bool over() const { return retired_ && allocations_ == frees_; }
  void uncount(Bytes size) {
    live_ -= size;
    ++frees_;
  }

  // What the machine has not is no error of the budget's.
  at::DataPtr ask(Bytes size) {
    try {
      return allocator_.allocate(static_cast<std::size_t>(size));
    } catch (const c10::Error& error) {
      throw MachineIsFull(error.what_without_backtrace());
    }
  }

  at::Allocator& allocator_;
  std::atomic<Bytes> limit_;
  // Written under the table's lock.
  std::atomic<Bytes> live_ = 0;
  Bytes peak_ = 0, allocated_ = 0;
  std::int64_t allocations_ = 0, frees_ = 0, peak_blocks_ = 0;
  bool retired_ = false;
  std::atomic<std::int64_t> failures_ = 0;
};

}  // namespace

Memory::Handle make_guest(at::Allocator& allocator, Bytes budget) {
  return Memory::Handle(new GuestMemory(allocator, budget));
}

bool guest_holds(const void* data) {
  const TableLock lock(table().mutex);
  return table().find(data) != nullptr;
}

void free_of_guest(const void* data) {
  TableLock lock(table().mutex);
  Counted* const block = table().find(data);
  insist(block != nullptr, "what is freed must be a live block that no session tracks");
  GuestMemory::free(*block, std::move(lock));
}

void lock_guests() { table().mutex.lock(); }
void unlock_guests() { table().mutex.unlock(); }

}  // namespace dtr
