// Memory of a CUDA device that torch's own allocator keeps. The session above it counts, evicts and
// recomputes (docs/torch_memory.md).
//
// A tensor keeps the DataPtr that torch's allocator made, deleter and all: torch compares deleters
// in many places (Tensor.record_stream, the trees of CUDA graphs), and so blocks from before and
// after our time need no care. It follows that nobody tells when an untracked block is freed. So
// live bytes are those of torch's books (allocated_bytes), and of requests that are not in them
// yet. They are read behind a bound that most requests are settled by. It is below them only by
// what torch was asked past us (resize_ of a storage from before). A Block exists while a session
// tracks what lies there.
//
// A request that torch turns down is dear: torch first waits for streams and gives back all that it
// had kept. So what was live then, less a surplus, is a second limit from then on, the cap, and
// tensors are evicted before torch is asked. The surplus is a sixty-fourth of the live bytes, and
// four times more after each failure in a row, so that the fourth evicts all. Then torch is asked a
// last time, and the cap is forgotten if it refuses. What torch serves raises the cap by a
// thousandth of its size, since the device's other users may go. But where none goes, the cap only
// meets the next refusal, which on a GPU takes as long as some steps of a training. So it rises
// half as fast after each, sixteen times slower at last, and twice as fast again when it is a
// sixty-fourth above what was refused then. Single victims are evicted, not neighbours: torch gives
// back whole segments, and large tensors have segments of their own.
//
// A block of more than 1 MiB may have up to 1 MiB more than was asked (torch splits no less off),
// and is charged so. roundup_power2_divisions and max_split_size may pass the budget by more.
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

// The device and the stream that this thread gives its work to. Tests without a GPU have their own.
struct CurrentWork {
  c10::DeviceIndex (*device)();
  Stream (*stream)(c10::DeviceIndex device);
};
CurrentWork current_cuda_work();

class NativeMemory final : public Memory {
 public:
  using Native = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  static constexpr Bytes kLargest = Bytes{16} << 40;  // LARGEST_BUDGET (size.py): no budget.

  // `native` is never destroyed. `deleter`: of what its cache gives.
  static Handle create(Native& native, c10::DeviceIndex device, Bytes budget, CurrentWork work,
                       c10::DeleterFnPtr deleter);

  // The Block is the thread's, and good until its next request.
  Block* allocate(Bytes size, Fit fit, Stream stream) override;
  void free(Block* block) override;
  Block* find(const void* data) const override;
  bool is_torchs() const override { return true; }
  Block* adopt(void* data, Bytes size) override;
  void disown(Block* block) override;

  Bytes budget() const override { return limit_; }
  Bytes largest_budget() const override { return kLargest; }
  Bytes live() const override;  // With what is asked for just now, perhaps counted twice.
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

  // Tells torch of a stream that uses a block which it gave to a tracked tensor.
  void use_on(void* data, c10::cuda::CUDAStream stream);
  // Something else than a request changed what is live, or what the device has.
  void forget_bound();
  void forget_cap();
  // Requests that torch turned down in vain: they were served after an eviction.
  std::int64_t recovered() const { return recovered_; }
  void forget_recovered() { recovered_ = 0; }
  // Torch's error at this thread's last request, or null; to be raised, and then it counts.
  std::exception_ptr take_failure();

 private:
  static constexpr int kFastestRise = 10, kSlowestRise = 14;

  struct Tracked : Block {
    std::vector<Stream> streams;  // That read it, besides the one it was made for.
  };

  NativeMemory(Native& native, c10::DeviceIndex device, Bytes budget, CurrentWork work,
               c10::DeleterFnPtr deleter);
  void retire() override { delete this; }

  c10::CachingDeviceAllocator::DeviceStats books() const { return native_.getDeviceStats(device_); }
  void* ask(Bytes size, Stream stream);
  bool reserve(Bytes charge, Fit fit);
  void served(Bytes charge, Fit fit);
  void turned_down(Bytes charge, Fit fit);
  // With the mutex held: what is live, or will be once torch has answered; and that it has.
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

  mutable std::mutex mutex_;  // Never held while memory is asked for or given back.
  Bytes bound_ = kLargest;    // Not below the live bytes: at first, all.
  Bytes in_flight_ = 0;       // Asked for, and perhaps not yet in torch's books.
  std::int64_t changes_ = 0;  // Of what the books or in_flight_ say, but for requests that begin.
  Bytes cap_ = kLargest;
  int failures_in_a_row_ = 0;
  int rise_ = kFastestRise;  // The cap's: a request's size, so often halved.
  Bytes refused_at_ = 0;     // What would have been live with the last refused request.
  std::unordered_map<const void*, Tracked> tracked_;
  std::vector<Stream> streams_;         // That memory was made for, or that read tracked tensors.
  std::unique_ptr<StreamOrder> order_;  // From the first stream on.
  std::atomic<bool> many_streams_{false};
  std::atomic<std::int64_t> failures_{0}, recovered_{0};
};

}  // namespace dtr
