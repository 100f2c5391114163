// Keeps a budget for memory of a CUDA device that torch's own allocator hands out. The session
// above evicts and recomputes (docs/torch_memory.md).
//
// A tensor keeps the DataPtr and deleter of torch's allocator, because torch compares deleters in
// many places (Tensor.record_stream, the trees of CUDA graphs). So blocks from before we are
// installed or after we are removed need no care. But we do not learn when an untracked block is
// freed. So live bytes are those of torch's statistics (allocated_bytes), plus requests not counted
// there yet. We read them only if an upper bound of ours does not settle a request. Only memory
// that torch gave without us can exceed the bound (resize_ of an older storage). A Block exists
// while a session tracks the tensor in it.
//
// A request that torch refuses is expensive: torch first waits for streams and frees all that it
// had cached. So from then on the live bytes of that moment, less a surplus, are a second limit,
// the cap, and tensors are evicted before torch is asked. The surplus is 1/64 of the live bytes,
// and four times more after each failure in a row, so that the fourth evicts all. Then torch is
// asked a last time, and the cap is dropped if torch refuses. A request that torch serves raises
// the cap by a thousandth of its size, since other users of the device may leave. If none leaves,
// the cap only rises to the next refusal, which on a GPU takes as long as some training steps. So
// it rises half as fast after each refusal, sixteen times slower at last, and twice as fast again
// once it is 1/64 above the refused amount. We evict single victims, not neighbours: torch frees
// whole segments, and large tensors have their own.
//
// A block of more than 1 MiB may be up to 1 MiB larger than requested (torch splits off no less),
// and is charged so. roundup_power2_divisions and max_split_size may exceed the budget by more.
//
// Every member is thread-safe, and holds no lock while torch is asked for memory. Source: torch's
// c10/cuda/CUDACachingAllocator.cpp for what an allocation, a free and a failure do.

#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "dtr_alloc/pool/csrc/memory.h"

namespace dtr {

// Tells this thread's current device and stream. Tests without a GPU replace it.
struct CurrentWork {
  c10::DeviceIndex (*device)();
  Stream (*stream)(c10::DeviceIndex device);
};
CurrentWork current_cuda_work();

class NativeMemory final : public Memory {
 public:
  using Native = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  static constexpr Bytes kLargest = Bytes{16} << 40;  // LARGEST_BUDGET (size.py): no budget.

  // `native` is never destroyed. `deleter`: that of blocks from its cache.
  static Handle create(Native& native, c10::DeviceIndex device, Bytes budget, CurrentWork work,
                       c10::DeleterFnPtr deleter);

  // The Block belongs to this thread, and is valid until the thread's next request.
  Block* allocate(Bytes size, Fit fit, Stream stream) override;
  void free(Block* block) override;
  Block* find(const void* data) const override;
  bool is_torchs() const override { return true; }
  Block* adopt(void* data, Bytes size) override;
  void disown(Block* block) override;

  Bytes budget() const override { return limit_; }
  Bytes largest_budget() const override { return kLargest; }
  Bytes live() const override;  // Includes requests under way, perhaps twice.
  Bytes settled_live(Bytes enough) const override;
  Bytes charge(Bytes size) const override;
  PoolStats stats() const override;
  void reset_peak() override { native_.resetPeakStats(device_); }
  void set_limit(Bytes limit) override;
  Bytes trim() override;
  void check() const override;

  void record_stream(Block* block, Stream stream) override;
  void record_every_stream(Block* block) override;
  void meet_stream(Stream stream) override;
  bool many_streams() const override { return many_streams_; }
  void gather_streams(Stream stream) override;
  void spread_stream(Stream stream) override;
  void retire_stream(Stream stream) override;

  // Tells torch that a stream uses the block of a tracked tensor.
  void use_on(void* data, c10::cuda::CUDAStream stream);
  // Something other than a request changed the live bytes, or the memory that the device has free.
  void forget_bound();
  void forget_cap();
  // Requests that torch refused, but that were served after an eviction.
  std::int64_t recovered() const { return recovered_; }
  void forget_recovered() { recovered_ = 0; }
  // Torch's error at this thread's last request, or null. The caller raises it as a failure.
  std::exception_ptr take_failure();

 private:
  static constexpr int kFastestRise = 10, kSlowestRise = 14;

  struct Tracked : Block {
    std::vector<Stream> streams;  // That use it, besides the one it was made for.
  };

  NativeMemory(Native& native, c10::DeviceIndex device, Bytes budget, CurrentWork work,
               c10::DeleterFnPtr deleter);
  void retire() override { delete this; }

  c10::CachingDeviceAllocator::DeviceStats books() const { return native_.getDeviceStats(device_); }
  void* ask(Bytes size, Stream stream);
  bool reserve(Bytes charge, Fit fit);
  void served(Bytes charge, Fit fit);
  void turned_down(Bytes charge, Fit fit);
  // With the mutex held: look() returns live bytes and requests under way; answer() ends a request.
  Bytes look(std::unique_lock<std::mutex>& lock) const;
  void answer(Bytes charge);
  void raise_cap(Bytes charge);
  void drop_cap();
  std::int32_t meet(Stream stream);

  Native& native_;
  const c10::DeviceIndex device_;
  const CurrentWork work_;
  const c10::DeleterFnPtr deleter_;
  std::atomic<Bytes> limit_;

  mutable std::mutex mutex_;  // Never held while memory is requested or freed.
  Bytes bound_ = kLargest;    // An upper bound of the live bytes.
  Bytes in_flight_ = 0;       // Requested, but perhaps not yet in torch's statistics.
  std::int64_t changes_ = 0;  // Counts changes to in_flight_ and statistics, but no new requests.
  Bytes cap_ = kLargest;
  int failures_in_a_row_ = 0;
  int rise_ = kFastestRise;  // The cap rises by a request's size >> rise_.
  Bytes refused_at_ = 0;     // Live bytes with the last refused request.
  std::unordered_map<const void*, Tracked> tracked_;
  std::vector<Stream> streams_;         // That got memory or use tracked tensors.
  std::unique_ptr<StreamOrder> order_;  // Made with the first stream.
  std::atomic<bool> many_streams_{false};
  std::atomic<std::int64_t> failures_{0}, recovered_{0};
};

}  // namespace dtr
