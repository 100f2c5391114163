// What a guest hands on to torch's allocator as it comes: one call each, and nothing of our own.

#include <utility>

#include "runtime/csrc/live_cuda/guest_allocator.h"

namespace dtr {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

// Templates, so that they compile where torch (2.11) has no such member.
template <class Native, class Observer>
void attach_rejection_observer(Native& native, Observer&& observer) {
  if constexpr (requires { native.attachOomRejectionObserver(observer); }) {
    native.attachOomRejectionObserver(std::forward<Observer>(observer));
  }
}

template <class Native>
void mark_capture(Native& native, c10::DeviceIndex device, bool begin) {
  if constexpr (requires { native.markCaptureBegin(device); }) {
    begin ? native.markCaptureBegin(device) : native.markCaptureEnd(device);
  }
}

template <class Native>
std::shared_ptr<c10::GatheredContext> context_for(Native& native, const void* data) {
  if constexpr (requires { native.getContextForPointer(data); }) {
    return native.getContextForPointer(data);
  } else {
    return nullptr;
  }
}

template <class Native>
bool takes_metadata(Native& native) {
  if constexpr (requires { native.supportsUserMetadata(); }) {
    return native.supportsUserMetadata();
  } else {
    return true;
  }
}

template <class Native>
void annotate(Native& native, const void* data, const std::string& text) {
  if constexpr (requires { native.annotateMemory(data, text); }) native.annotateMemory(data, text);
}

}  // namespace

bool GuestAllocator::is_simple_data_ptr(const c10::DataPtr& data) const {
  return native_.is_simple_data_ptr(data);
}

void GuestAllocator::copy_data(void* to, const void* from, Count bytes) const {
  native_.copy_data(to, from, bytes);
}

std::pair<std::size_t, std::size_t> GuestAllocator::getMemoryInfo(DeviceIndex device) {
  return native_.getMemoryInfo(device);
}

double GuestAllocator::getMemoryFraction(DeviceIndex device) {
  return native_.getMemoryFraction(device);
}

std::vector<caching::StreamSegmentSize> GuestAllocator::getExpandableSegmentSizes(
    DeviceIndex device) {
  return native_.getExpandableSegmentSizes(device);
}

void GuestAllocator::cacheInfo(DeviceIndex device, Count* largest) {
  native_.cacheInfo(device, largest);
}

void* GuestAllocator::getBaseAllocation(void* data, Count* size) {
  return native_.getBaseAllocation(data, size);
}

caching::SnapshotInfo GuestAllocator::snapshot(MempoolId id, bool include_traces) {
  return native_.snapshot(id, include_traces);
}

void GuestAllocator::releasePool(DeviceIndex device, MempoolId id) {
  native_.releasePool(device, id);
}

int GuestAllocator::getPoolUseCount(DeviceIndex device, MempoolId id) {
  return native_.getPoolUseCount(device, id);
}

void GuestAllocator::setUseOnOOM(DeviceIndex device, MempoolId id, bool use_on_oom) {
  native_.setUseOnOOM(device, id, use_on_oom);
}

void GuestAllocator::setNoSplit(DeviceIndex device, MempoolId id) {
  native_.setNoSplit(device, id);
}

bool GuestAllocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId id,
                                              const std::unordered_set<void*>& expected) {
  return native_.checkPoolLiveAllocations(device, id, expected);
}

caching::ShareableHandle GuestAllocator::shareIpcHandle(void* data) {
  return native_.shareIpcHandle(data);
}

std::shared_ptr<void> GuestAllocator::getIpcDevPtr(std::string handle) {
  return native_.getIpcDevPtr(std::move(handle));
}

void GuestAllocator::recordHistory(bool enabled, caching::CreateContextFn context, Count entries,
                                   caching::RecordContext when, bool clear,
                                   const std::vector<std::string>& skipped) {
  native_.recordHistory(enabled, context, entries, when, clear, skipped);
}

void GuestAllocator::recordAnnotation(
    const std::vector<std::pair<std::string, std::string>>& text) {
  native_.recordAnnotation(text);
}

void GuestAllocator::attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) {
  native_.attachAllocatorTraceTracker(std::move(tracker));
}

void GuestAllocator::enablePeerAccess(DeviceIndex device, DeviceIndex peer) {
  native_.enablePeerAccess(device, peer);
}

cudaError_t GuestAllocator::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                        Count bytes, cudaStream_t stream, bool p2p_enabled) {
  return native_.memcpyAsync(to, to_device, from, from_device, bytes, stream, p2p_enabled);
}

std::shared_ptr<caching::AllocatorState> GuestAllocator::getCheckpointState(DeviceIndex device,
                                                                            MempoolId id) {
  return native_.getCheckpointState(device, id);
}

// ---- Forwarded where this torch has it

void GuestAllocator::markCaptureBegin(DeviceIndex device) { mark_capture(native_, device, true); }

void GuestAllocator::markCaptureEnd(DeviceIndex device) { mark_capture(native_, device, false); }

std::shared_ptr<c10::GatheredContext> GuestAllocator::getContextForPointer(const void* data) {
  return context_for(native_, data);
}

bool GuestAllocator::supportsUserMetadata() { return takes_metadata(native_); }

void GuestAllocator::annotateMemory(const void* data, const std::string& text) {
  annotate(native_, data, text);
}

void GuestAllocator::attachOomRejectionObserver(
    std::function<void(std::int64_t, Count, Count, Count)> observer) {
  attach_rejection_observer(native_, std::move(observer));
}

}  // namespace dtr
