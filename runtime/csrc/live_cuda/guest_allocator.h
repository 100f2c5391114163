// Wraps torch's own CUDA allocator, which keeps the memory (guest mode). The class forwards every
// virtual function of torch's interface; tests/torch_memory/test_cuda_guest.py reads their names
// from torch's headers. Requests on the session's device first go through the session, which evicts
// when the budget or the device is full.
//
// Forwarded features behave as in torch: expandable segments, memory history, trees of CUDA graphs,
// MemPools with their own allocators, IPC, peer access, NCCL's registration. The allocator may be
// installed after tensors exist, and removed while they live, because no tensor refers to it.
//
// An out-of-memory error has torch's text if the device is full, and ours if the budget is full.
// Functions attached by attachOutOfMemoryObserver are called once for each such error, when nothing
// is left to evict.

#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/csrc/live/session/session.h"
#include "runtime/csrc/live_cuda/native_memory.h"

namespace dtr {

namespace caching = c10::cuda::CUDACachingAllocator;

class GuestAllocator final : public caching::CUDAAllocator {
 public:
  using Native = caching::CUDAAllocator;
  using DeviceIndex = c10::DeviceIndex;
  using MempoolId = c10::MempoolId_t;
  using OomObserver = caching::OutOfMemoryObserver;
  using Count = std::size_t;

  // Evicts on `device`, or if that is -1, on the first device that memory is requested on. `native`
  // is never destroyed. Throws unless `native` is torch's own allocator, with its cache on.
  GuestAllocator(Native& native, const SessionOptions& options, DeviceIndex device,
                 CurrentWork work = current_cuda_work());

  // install() takes the place of torch's allocator, which may be in use already. remove() brings
  // all tensors back and restores torch's allocator. Both throw if another is installed.
  void install();
  void remove();
  bool installed() const { return caching::allocator.load() == this; }
  void serve(Session& session);  // For tests: uses this session instead of making one.

  void retire_stream(Stream stream, DeviceIndex device);  // Call before the stream is destroyed.
  void* allocate_on(Count bytes, DeviceIndex device, cudaStream_t stream);
  Session* session() const { return session_.load(std::memory_order_acquire); }
  NativeMemory* memory() const;                    // The session's memory, or null.
  NativeMemory* memory(DeviceIndex device) const;  // The session's if on `device`, else null.

  // Functions that do more than forward: for requests, captures, streams, counts.
  c10::DataPtr allocate(Count bytes) override;
  void* raw_alloc(Count bytes) override;
  void* raw_alloc_with_stream(Count bytes, cudaStream_t stream) override;
  void init(int devices) override;
  void enable(bool on) override;
  void emptyCache(MempoolId id = {0, 0}) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void beginAllocateToPool(DeviceIndex device, MempoolId id,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId id) override;
  void createOrIncrefPool(DeviceIndex device, MempoolId id,
                          std::shared_ptr<CUDAAllocator> allocator = nullptr) override;
  caching::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device, std::shared_ptr<caching::AllocatorState> state) override;
  void attachOutOfMemoryObserver(OomObserver observer) override;
  c10::DataPtr allocateWithAddress(Count bytes, void* address);  // Only in torch 2.12 and later.

  // Functions that only forward.
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return native_.is_simple_data_ptr(data);
  }
  c10::DeleterFnPtr raw_deleter() const override { return native_.raw_deleter(); }
  void copy_data(void* to, const void* from, Count bytes) const override {
    native_.copy_data(to, from, bytes);
  }
  bool initialized() override { return native_.initialized(); }
  void resetPeakStats(DeviceIndex device) override { native_.resetPeakStats(device); }
  std::pair<Count, Count> getMemoryInfo(DeviceIndex device) override {
    return native_.getMemoryInfo(device);
  }
  void raw_delete(void* data) override { native_.raw_delete(data); }
  double getMemoryFraction(DeviceIndex device) override {
    return native_.getMemoryFraction(device);
  }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return native_.getExpandableSegmentSizes(device);
  }
  bool isEnabled() const override { return native_.isEnabled(); }
  void cacheInfo(DeviceIndex device, Count* largest) override {
    native_.cacheInfo(device, largest);
  }
  void* getBaseAllocation(void* data, Count* size) override {
    return native_.getBaseAllocation(data, size);
  }
  caching::SnapshotInfo snapshot(MempoolId id = {0, 0}, bool include_traces = true) override {
    return native_.snapshot(id, include_traces);
  }
  void releasePool(DeviceIndex device, MempoolId id) override { native_.releasePool(device, id); }
  int getPoolUseCount(DeviceIndex device, MempoolId id) override {
    return native_.getPoolUseCount(device, id);
  }
  void setUseOnOOM(DeviceIndex device, MempoolId id, bool use_on_oom) override {
    native_.setUseOnOOM(device, id, use_on_oom);
  }
  void setNoSplit(DeviceIndex device, MempoolId id) override { native_.setNoSplit(device, id); }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId id,
                                const std::unordered_set<void*>& expected) override {
    return native_.checkPoolLiveAllocations(device, id, expected);
  }
  caching::ShareableHandle shareIpcHandle(void* data) override {
    return native_.shareIpcHandle(data);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return native_.getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override { return native_.isHistoryEnabled(); }
  void recordHistory(bool enabled, caching::CreateContextFn context, Count entries,
                     caching::RecordContext when, bool clear,
                     const std::vector<std::string>& skipped) override {
    native_.recordHistory(enabled, context, entries, when, clear, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& text) override {
    native_.recordAnnotation(text);
  }
  void pushCompileContext(std::string& context) override { native_.pushCompileContext(context); }
  void popCompileContext() override { native_.popCompileContext(); }
  void setUserMetadata(const std::string& text) override { native_.setUserMetadata(text); }
  std::string getUserMetadata() override { return native_.getUserMetadata(); }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    native_.attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override {
    native_.enablePeerAccess(device, peer);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, Count bytes,
                          cudaStream_t stream, bool p2p_enabled) override {
    return native_.memcpyAsync(to, to_device, from, from_device, bytes, stream, p2p_enabled);
  }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex device,
                                                              MempoolId id) override {
    return native_.getCheckpointState(device, id);
  }
  std::string name() override { return native_.name(); }

  // These forward, too, but only torch 2.12 and later has them. So they lack `override`, and call
  // `native` in templates, where a member that torch lacks is no error.
  void markCaptureBegin(DeviceIndex device) {
    [&](auto& native) {
      if constexpr (requires { native.markCaptureBegin(device); }) native.markCaptureBegin(device);
    }(native_);
  }
  void markCaptureEnd(DeviceIndex device) {
    [&](auto& native) {
      if constexpr (requires { native.markCaptureEnd(device); }) native.markCaptureEnd(device);
    }(native_);
  }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* data) {
    return [&](auto& native) -> std::shared_ptr<c10::GatheredContext> {
      if constexpr (requires { native.getContextForPointer(data); }) {
        return native.getContextForPointer(data);
      } else {
        return nullptr;
      }
    }(native_);
  }
  bool supportsUserMetadata() {
    return [](auto& native) {
      if constexpr (requires { native.supportsUserMetadata(); }) {
        return native.supportsUserMetadata();
      } else {
        return true;
      }
    }(native_);
  }
  void annotateMemory(const void* data, const std::string& text) {
    [&](auto& native) {
      if constexpr (requires { native.annotateMemory(data, text); }) {
        native.annotateMemory(data, text);
      }
    }(native_);
  }
  void attachOomRejectionObserver(std::function<void(std::int64_t, Count, Count, Count)> observer) {
    [&](auto& native) {
      if constexpr (requires { native.attachOomRejectionObserver(observer); }) {
        native.attachOomRejectionObserver(std::move(observer));
      }
    }(native_);
  }

 private:
  Session* session_for(DeviceIndex device);           // Makes a session if needed; may be null.
  Session* serving(DeviceIndex device, Count bytes);  // The session for a request, or null.
  Session* make_session(DeviceIndex device);          // Null while torch's cache is off.
  static void* take(Session& session, Count bytes, Stream stream);
  template <class Ask>
  auto telling(DeviceIndex device, Count bytes, const Ask& ask);
  void tell_observers(DeviceIndex device, Count bytes);

  Native& native_;
  const SessionOptions options_;
  const DeviceIndex device_;
  const CurrentWork work_;
  const c10::DeleterFnPtr deleter_;
  std::atomic<Session*> session_{nullptr};  // Never destroyed: tensors outlive it.
  std::atomic<DeviceIndex> serves_{-1};
  std::atomic<bool> removed_{false};
  Bytes total_ = kLargestBudget;  // The device's memory.
  std::mutex mutex_;
  std::vector<MempoolId> captures_;  // Captures that the session knows of.
  std::vector<OomObserver> observers_;
  // Held while torch's cache is switched on or off, or a session begins. Locked before mutex_.
  std::recursive_mutex switching_;
  bool off_ = false;  // Torch's cache is off, and the session was told.
};

}  // namespace dtr
