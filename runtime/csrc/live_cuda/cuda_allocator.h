// Implements torch's whole interface of a CUDA allocator over our pools, for
// torch.cuda.memory.change_current_allocator.
//
// The class derives from CUDAAllocator. Torch's CUDAPluggableAllocator, which is meant for users,
// refuses statistics, snapshots and cacheInfo, replaces an out-of-memory error by another, and
// locks and searches a table at every request. Calls that we do not support raise an error with a
// reason and a remedy (docs/allocator.md). Until a device is used, no function calls the driver.

#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "runtime/csrc/live_cuda/device_memory.h"

namespace dtr {

namespace caching = c10::cuda::CUDACachingAllocator;

class CudaAllocator final : public caching::CUDAAllocator {
 public:
  using DeviceIndex = c10::DeviceIndex;
  using MempoolId = c10::MempoolId_t;

  // With `rematerialize`, one device evicts and recomputes: `device`, or if that is -1, the first
  // device that memory is requested on. Every other device gets only a pool of the same budget.
  CudaAllocator(const SessionOptions& options, DeviceIndex device, bool rematerialize)
      : options_(options), device_(device), rematerialize_(rematerialize) {}

  // For callers that give a device and a stream: CuPy, RMM, tests.
  void* allocate_on(std::size_t bytes, DeviceIndex device, cudaStream_t stream);
  void retire_stream(Stream stream, DeviceIndex device) {  // Call before the stream is destroyed.
    if (DeviceMemory* memory = at(device)) memory->retire_stream(stream);
  }
  DeviceMemory* at(DeviceIndex device) const;  // Null before the device's first use.
  const Memory* memory(DeviceIndex device) const {
    const DeviceMemory* memory = at(device);
    return memory ? &memory->pool : nullptr;
  }
  Session* session() const;  // Null before the first request, or without rematerialization.

  // Requests.
  c10::DataPtr allocate(std::size_t bytes) override;
  void* raw_alloc(std::size_t bytes) override;
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* data) override { DeviceMemory::deleter(data); }
  c10::DeleterFnPtr raw_deleter() const override { return &DeviceMemory::deleter; }
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  void* getBaseAllocation(void* data, std::size_t* size) override;
  void emptyCache(MempoolId id = {0, 0}) override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                          std::size_t bytes, cudaStream_t stream, bool) override {
    if (to_device == from_device) {
      return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    }
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
  }

  // Settings.
  void init(int) override;
  bool initialized() override { return initialized_; }
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  double getMemoryFraction(DeviceIndex device) override {
    const DeviceMemory* memory = at(device);
    return memory ? memory->fraction : 1.0;
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, "the fraction of memory is ", fraction,
                      "; it must be between 0 and 1");
    on(device).set_fraction(fraction);
  }
  std::string name() override { return "dtr_alloc"; }

  // Figures. These functions work even before the first request, so also on a machine without a
  // GPU. cuDNN's benchmark asks cacheInfo how much memory it may use. We report the largest hole,
  // so that a benchmark evicts nothing.
  void cacheInfo(DeviceIndex device, std::size_t* largest) override {
    const DeviceMemory* memory = at(device);
    *largest =
        static_cast<std::size_t>(memory ? memory->pool.stats().largest_hole : options_.budget);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    const DeviceMemory* memory = at(device);
    return memory ? memory->stats() : c10::CachingDeviceAllocator::DeviceStats{};
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    if (DeviceMemory* memory = at(device)) memory->reset_accumulated();
  }
  void resetPeakStats(DeviceIndex device) override {
    if (DeviceMemory* memory = at(device)) memory->pool.reset_peak();
  }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override {
    return {};
  }
  caching::SnapshotInfo snapshot(MempoolId id = {0, 0}, bool include_traces = true) override;
  bool isHistoryEnabled() override { return false; }

  // Graph capture and MemPools.
  void beginAllocateToPool(DeviceIndex device, MempoolId id,
                           std::function<bool(cudaStream_t)> filter) override {
    on(device).begin_capture(id, [filter = std::move(filter)](Stream stream) {
      return filter(reinterpret_cast<cudaStream_t>(stream));
    });
  }
  void endAllocateToPool(DeviceIndex device, MempoolId id) override { on(device).end_capture(id); }
  void releasePool(DeviceIndex device, MempoolId id) override {
    if (DeviceMemory* memory = at(device)) memory->graphs.release(id);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId id) override {
    const DeviceMemory* memory = at(device);
    return memory ? memory->graphs.uses(id) : 0;
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId id,
                          std::shared_ptr<CUDAAllocator> allocator = nullptr) override {
    TORCH_CHECK(!allocator,
                "a MemPool with an allocator of its own cannot lie beside dtr_alloc, whose budget "
                "would not bound it: make it without one, torch.cuda.MemPool()");
    on(device).graphs.use(id);
  }
  void setUseOnOOM(DeviceIndex, MempoolId, bool use_on_oom) override {
    TORCH_CHECK(!use_on_oom, "MemPool(use_on_oom=True) is not served by dtr_alloc: its pool is "
                             "full only when nothing is left to evict; leave the option out");
  }
  void setNoSplit(DeviceIndex, MempoolId) override {}  // Each tensor has a block of its own anyway.
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId id,
                                const std::unordered_set<void*>& expected) override;

  // Observers.
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    const std::lock_guard lock(mutex_);
    observers_.push_back(std::move(observer));
  }
  // Only torch 2.12 and later call this function.
  void attachOomRejectionObserver(
      std::function<void(std::int64_t, std::size_t, std::size_t, std::size_t)>) {}

  // Refused calls.
  std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex, MempoolId) override {
    TORCH_CHECK(false, "dtr_alloc keeps no checkpoints of a graph's memory, which CUDA graph trees "
                       "(torch.compile with mode=\"reduce-overhead\") need: use mode=\"default\" "
                       "or \"max-autotune-no-cudagraphs\"");
  }
  caching::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device, std::shared_ptr<caching::AllocatorState>) override {
    getCheckpointState(device, {});
    return {};
  }
  caching::ShareableHandle shareIpcHandle(void*) override {
    TORCH_CHECK(false, "a CUDA tensor of dtr_alloc cannot be shared with another process, since "
                       "its pages may move: send a copy on the host, tensor.cpu()");
  }
  std::shared_ptr<void> getIpcDevPtr(std::string) override {
    TORCH_CHECK(false, "dtr_alloc does not open CUDA tensors of other processes: have them sent "
                       "from the host, tensor.cpu()");
  }
  void recordHistory(bool enabled, caching::CreateContextFn, std::size_t, caching::RecordContext,
                     bool, const std::vector<std::string>&) override {
    TORCH_CHECK(!enabled, "dtr_alloc keeps no history of allocations: take "
                          "torch.cuda.memory._snapshot() without _record_memory_history(), which "
                          "shows what is in memory now");
  }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker) override {
    TORCH_CHECK(false, "dtr_alloc does not report its pages to NCCL: unset "
                       "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK");
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override {
    TORCH_CHECK(false, "memory of dtr_alloc on device ", static_cast<int>(peer),
                " is not mapped for device ", static_cast<int>(device),
                ": copy by way of the host, tensor.cpu().to(...)");
  }

 private:
  static constexpr std::size_t kDevices = 16;
  DeviceMemory& on(DeviceIndex device);

  const SessionOptions options_;
  const DeviceIndex device_;
  const bool rematerialize_;
  std::atomic<bool> initialized_{false};
  mutable std::mutex mutex_;
  std::array<std::atomic<DeviceMemory*>, kDevices> memory_{};
  std::vector<caching::OutOfMemoryObserver> observers_;
};

}  // namespace dtr
