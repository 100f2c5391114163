// The object that torch.cuda.memory.change_current_allocator takes: torch's whole interface of a
// CUDA allocator over our pools.
//
// It is a CUDAAllocator, not the CUDAPluggableAllocator that torch has for users: that one refuses
// statistics, snapshots and cacheInfo, turns an out-of-memory error into another, and puts a lock
// and a table before every request. What we refuse we refuse with a reason and a remedy.
// docs/allocator.md lists both. Nothing here touches the driver until memory is asked for.

#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "runtime/csrc/live_cuda/device_memory.h"

namespace dtr {

class CudaAllocator final : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  using DeviceIndex = c10::DeviceIndex;
  using MempoolId = c10::MempoolId_t;

  // `rematerialize` on `device`, or on the first one that memory is asked for where it is -1; the
  // other devices get a pool of the same budget each.
  CudaAllocator(const SessionOptions& options, DeviceIndex device, bool rematerialize);

  // By device and stream, for those who know both: CuPy, RMM, tests.
  void* allocate_on(std::size_t bytes, DeviceIndex device, cudaStream_t stream);
  DeviceMemory* at(DeviceIndex device) const;  // Null before the first request.
  Session* session() const;                    // Null before it, or without rematerialization.
  DeviceIndex device() const { return device_; }
  Bytes budget() const { return options_.budget; }

  // c10::Allocator
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &DeviceMemory::deleter; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  // CUDAAllocator
  void* raw_alloc(std::size_t bytes) override;
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* data) override { DeviceMemory::deleter(data); }
  void init(int) override;
  bool initialized() override { return initialized_; }
  double getMemoryFraction(DeviceIndex device) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> getExpandableSegmentSizes(
      DeviceIndex) override {
    return {};
  }
  void emptyCache(MempoolId id = {0, 0}) override;
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  void cacheInfo(DeviceIndex device, std::size_t* largest) override;
  void* getBaseAllocation(void* data, std::size_t* size) override;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(MempoolId id = {0, 0},
                                                         bool include_traces = true) override;
  void beginAllocateToPool(DeviceIndex device, MempoolId id,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId id) override;
  void releasePool(DeviceIndex device, MempoolId id) override;
  int getPoolUseCount(DeviceIndex device, MempoolId id) override;
  void createOrIncrefPool(DeviceIndex device, MempoolId id,
                          std::shared_ptr<CUDAAllocator> allocator = nullptr) override;
  void setUseOnOOM(DeviceIndex device, MempoolId id, bool use_on_oom) override;
  void setNoSplit(DeviceIndex device, MempoolId id) override;
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId id,
                                const std::unordered_set<void*>& expected) override;
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(void*) override;
  std::shared_ptr<void> getIpcDevPtr(std::string) override;
  bool isHistoryEnabled() override { return false; }
  void recordHistory(bool enabled, c10::cuda::CUDACachingAllocator::CreateContextFn, std::size_t,
                     c10::cuda::CUDACachingAllocator::RecordContext, bool,
                     const std::vector<std::string>&) override;
  void attachOutOfMemoryObserver(
      c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) override;
  // Torch 2.12 and later ask for it.
  void attachOomRejectionObserver(
      std::function<void(std::int64_t, std::size_t, std::size_t, std::size_t)>) {}
  void attachAllocatorTraceTracker(c10::cuda::CUDACachingAllocator::AllocatorTraceTracker) override;
  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                          std::size_t bytes, cudaStream_t stream, bool p2p_enabled) override;
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> getCheckpointState(
      DeviceIndex, MempoolId) override;
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      DeviceIndex, std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState>) override;
  std::string name() override { return "dtr_alloc"; }

 private:
  static constexpr std::size_t kDevices = 16;
  DeviceMemory& on(DeviceIndex device);

  const SessionOptions options_;
  const DeviceIndex device_;
  const bool rematerialize_;
  std::atomic<bool> initialized_{false};
  mutable std::mutex mutex_;
  std::array<std::atomic<DeviceMemory*>, kDevices> memory_{};
  std::vector<c10::cuda::CUDACachingAllocator::OutOfMemoryObserver> observers_;
};

}  // namespace dtr
