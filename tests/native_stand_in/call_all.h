// Calls every virtual function of an allocator, as torch would.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <string>

namespace stand_in {

// Returns a text with all calls' results. `deleter` is what raw_deleter() must return. This is a
// template, so that functions that the installed torch lacks are not called.
template <class Allocator>
std::string call_all(Allocator& a, c10::DeleterFnPtr deleter) {
  using c10::cuda::CUDACachingAllocator::RecordContext;
  using c10::cuda::CUDACachingAllocator::TraceEntry;
  using Count = std::size_t;
  std::string told;
  const auto tell = [&](const auto& value) { told += c10::str(value, ";"); };
  c10::DataPtr data = a.allocate(100);
  a.raw_deallocate(a.raw_allocate(100));
  tell(a.is_simple_data_ptr(data));
  tell(a.raw_deleter() == deleter);
  a.copy_data(nullptr, nullptr, 3);
  tell(a.initialized());
  a.emptyCache({9, 0});
  a.recordStream(data, c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kCUDA, 0)));
  a.recordStream(data, c10::cuda::CUDAStream(
                           c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0), 16)));
  tell(a.getDeviceStats(0).num_ooms);
  a.resetAccumulatedStats(0);
  a.resetPeakStats(0);
  tell(a.getMemoryInfo(0).second);
  a.raw_delete(a.raw_alloc(100));
  a.raw_delete(a.raw_alloc_with_stream(100, reinterpret_cast<cudaStream_t>(16)));
  a.init(2);
  tell(a.getMemoryFraction(0));
  a.setMemoryFraction(0.5, 0);
  tell(a.getExpandableSegmentSizes(0)[0].total_size);
  a.enable(true);
  tell(a.isEnabled());
  Count size = 0;
  a.cacheInfo(0, &size);
  tell(size);
  tell(a.getBaseAllocation(nullptr, &size) == nullptr);
  tell(size);
  tell(a.snapshot({9, 0}, false).segments.size());
  a.createOrIncrefPool(0, {9, 0});
  a.setUseOnOOM(0, {9, 0}, true);
  a.setNoSplit(0, {9, 0});
  a.beginAllocateToPool(0, {9, 0}, [](cudaStream_t stream) { return stream == nullptr; });
  a.endAllocateToPool(0, {9, 0});
  tell(a.getPoolUseCount(0, {9, 0}));
  tell(a.checkPoolLiveAllocations(0, {9, 0}, {&size}));
  tell(a.setCheckpointPoolState(0, a.getCheckpointState(0, {9, 0})).ptrs_freed.size());
  a.releasePool(0, {9, 0});
  tell(a.shareIpcHandle(nullptr).handle);
  tell(a.getIpcDevPtr("x") == nullptr);
  tell(a.isHistoryEnabled());
  a.recordHistory(true, nullptr, 5, RecordContext::ALLOC, true, {"oom"});
  a.recordAnnotation({{"a", "b"}});
  std::string context = "context";
  a.pushCompileContext(context);
  a.popCompileContext();
  a.setUserMetadata("m");
  tell(a.getUserMetadata());
  a.attachAllocatorTraceTracker([](const TraceEntry&) {});
  a.enablePeerAccess(0, 1);
  tell(a.memcpyAsync(nullptr, 0, nullptr, 1, 3, nullptr, true));
  tell(a.name());
  if constexpr (requires { a.markCaptureBegin(0); }) {
    a.markCaptureBegin(0);
    a.markCaptureEnd(0);
  }
  if constexpr (requires { a.getContextForPointer(&size); }) a.getContextForPointer(&size);
  if constexpr (requires { a.supportsUserMetadata(); }) tell(a.supportsUserMetadata());
  if constexpr (requires { a.annotateMemory(&size, "x"); }) a.annotateMemory(&size, "x");
  if constexpr (requires { a.attachOomRejectionObserver(nullptr); }) {
    a.attachOomRejectionObserver(nullptr);
  }
  if constexpr (requires { a.allocateWithAddress(1, nullptr); }) a.allocateWithAddress(1, nullptr);
  return told;
}

}  // namespace stand_in
