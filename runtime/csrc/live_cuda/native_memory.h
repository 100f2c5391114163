// Bounds by a budget the memory that torch's own allocator hands out on a CUDA device. The session
// evicts for requests, and recomputes (docs/torch_memory.md).
//
// An untracked tensor has the DataPtr and deleter that torch's allocator gave it, because torch
// compares deleters in many places (Tensor.record_stream, the trees of CUDA graphs). So blocks from
// before our installation or after our removal need no care. But we do not learn when an untracked
// block is freed. So the live bytes are torch's allocated_bytes, plus requests that torch has not
// counted yet. We read torch's statistics only if our upper bound of the live bytes leaves no room
// for a request. The bound misses only memory that torch gave without us (resize_ of an older
// storage). A Block exists only while a session tracks the tensor in it.
//
// A request that torch refuses is expensive: torch first waits for streams and frees all its cached
// memory. So a refusal sets a second limit on the live bytes, the cap: from then on, tensors are
// evicted before torch is asked. The cap is the live bytes at the refusal, less 1/64 of them. Each
// further refusal in a row takes off four times as much, so the fourth evicts all. Then torch is
// asked a last time; if it refuses, the cap is dropped. A request that torch serves raises the cap
// by a thousandth of the request's size, since other users of the device may have left. If none has
// left, the cap rises until torch refuses again, on a GPU after some training steps. So the first
// of several refusals in a row halves the speed of the rise, down to a sixteenth. The speed doubles
// again once the cap is 1/64 above the refused amount. We evict single victims, not neighbours,
// since torch frees only whole segments, and a large tensor has its own segment.
//
// A block of more than 1 MiB may be up to 1 MiB larger than requested, and counts as that large.
// Torch's options roundup_power2_divisions and max_split_size may add more.
//
// Every member is thread-safe, and holds no lock while it asks torch for memory. Torch's
// c10/cuda/CUDACachingAllocator.cpp shows what an allocation, a free and a failure do.

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

// Tells this thread's current device and stream. Tests without a GPU replace the functions.
struct CurrentWork {
  c10::DeviceIndex (*device)();
  Stream (*stream)(c10::DeviceIndex device);
};
CurrentWork current_cuda_work();

class NativeMemory final : public Memory {
 public:
  using Native = c10::cuda::CUDACachingAllocator::CUDAAllocator;

  // `native` is never destroyed. `deleter` is the deleter of its cached blocks.
  static Handle create(Native& native, c10::DeviceIndex device, Bytes budget, CurrentWork work,
                       c10::DeleterFnPtr deleter);

  // The returned Block belongs to this thread, and is valid until the thread's next request.
  Block* allocate(Bytes size, Fit fit, Stream stream) override;
  void free(Block* block) override;
  Block* find(const void* data) const override;
  bool is_torchs() const override { return true; }
  Block* adopt(void* data, Bytes size) override;
  void disown(Block* block) override;

  Bytes budget() const override { return limit_; }
  Bytes largest_budget() const override { return kLargestBudget; }
  Bytes live() const override;  // Includes requests under way, some perhaps twice.
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
  // Call these if anything but a request changed the live bytes or, respectively, the free memory.
  void forget_bound();
  void forget_cap();
  // Number of torch's refusals that did not become errors of the program.
  std::int64_t recovered() const { return recovered_; }
  void forget_recovered() { recovered_ = 0; }
  // Returns torch's error at this thread's last request, or null. The caller must throw the error.
  std::exception_ptr take_failure();

 private:
  static constexpr int kFastestRise = 10, kSlowestRise = 14;

  struct Tracked : Block {
    std::vector<Stream> streams;  // Streams that use it, besides the one it was made for.
  };

  NativeMemory(Native& native, c10::DeviceIndex device, Bytes budget, CurrentWork work,
               c10::DeleterFnPtr deleter);
  void retire() override { delete this; }

  c10::CachingDeviceAllocator::DeviceStats books() const { return native_.getDeviceStats(device_); }
  void* ask(Bytes size, Stream stream);
  bool reserve(Bytes charge, Fit fit);
  void served(Bytes charge, Fit fit);
  void turned_down(Bytes charge, Fit fit);
  // Both need the mutex. look() adds requests under way to live bytes; answer() ends a request.
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

  mutable std::mutex mutex_;      // Never held while memory is requested or freed.
  Bytes bound_ = kLargestBudget;  // An upper bound of the live bytes.
  Bytes in_flight_ = 0;           // Bytes requested, but perhaps not yet in torch's statistics.
  std::int64_t changes_ = 0;      // Number of ended requests and of calls of forget_bound().
  Bytes cap_ = kLargestBudget;
  int failures_in_a_row_ = 0;
  int rise_ = kFastestRise;  // The cap rises by a request's size >> rise_.
  Bytes refused_at_ = 0;     // Live bytes plus request at the last refusal.
  std::unordered_map<const void*, Tracked> tracked_;
  std::vector<Stream> streams_;         // Streams that got memory or use tracked tensors.
  std::unique_ptr<StreamOrder> order_;  // Made with the first stream.
  std::atomic<bool> many_streams_{false};
  std::atomic<std::int64_t> failures_{0}, recovered_{0};
};

}  // namespace dtr
