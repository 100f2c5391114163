// Most members find the device's memory and pass the call on. Those that only ask answer for a
// device that nothing was asked of yet, so that statistics work on a machine without a GPU.

#include "runtime/csrc/live_cuda/cuda_allocator.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include "runtime/csrc/live/machine/in_operator.h"

namespace dtr {
namespace {

c10::DeviceIndex current_device() {
  c10::DeviceIndex device = -1;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

cudaStream_t current_stream(c10::DeviceIndex device) {
  return c10::cuda::getCurrentCUDAStream(device).stream();
}

Stream named(cudaStream_t stream) { return reinterpret_cast<Stream>(stream); }

}  // namespace

CudaAllocator::CudaAllocator(const SessionOptions& options, DeviceIndex device, bool rematerialize)
    : options_(options), device_(device), rematerialize_(rematerialize) {}

DeviceMemory* CudaAllocator::at(DeviceIndex device) const {
  if (device < 0 || static_cast<std::size_t>(device) >= kDevices) return nullptr;
  return memory_[device].load(std::memory_order_acquire);
}

Session* CudaAllocator::session() const {
  for (const auto& memory : memory_) {
    DeviceMemory* found = memory.load(std::memory_order_acquire);
    if (found && found->session) return found->session.get();
  }
  return nullptr;
}

DeviceMemory& CudaAllocator::on(DeviceIndex device) {
  if (DeviceMemory* memory = at(device)) return *memory;
  TORCH_CHECK(device >= 0 && static_cast<std::size_t>(device) < kDevices,
              "dtr_alloc.allocator serves CUDA devices 0 to ", kDevices - 1, ", not ",
              static_cast<int>(device));
  std::lock_guard<std::mutex> guard(mutex_);
  if (DeviceMemory* memory = at(device)) return *memory;
  bool here = rematerialize_ && (device_ == device || (device_ < 0 && !session()));
  auto* memory = new DeviceMemory(options_, device, *this, here);
  memory_[device].store(memory, std::memory_order_release);
  return *memory;
}

void* CudaAllocator::allocate_on(std::size_t bytes, DeviceIndex device, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  DeviceMemory& memory = on(device);
  try {
    return memory.allocate(bytes, named(stream));
  } catch (const c10::OutOfMemoryError&) {
    PoolStats now = memory.pool.stats();
    c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), now.live, now.committed,
                                     c10::Device(c10::kCUDA, device));
    std::vector<c10::cuda::CUDACachingAllocator::OutOfMemoryObserver> observers;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      observers = observers_;
    }
    for (const auto& observer : observers) {
      observer(device, bytes, now.budget, std::max<Bytes>(now.budget - now.live, 0));
    }
    throw;
  }
}

c10::DataPtr CudaAllocator::allocate(std::size_t bytes) {
  DeviceIndex device = current_device();
  void* data = bytes ? allocate_on(bytes, device, current_stream(device)) : nullptr;
  return {data, data, &DeviceMemory::deleter, c10::Device(c10::kCUDA, device)};
}

void* CudaAllocator::raw_alloc(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  DeviceIndex device = current_device();
  return allocate_on(bytes, device, current_stream(device));
}

void* CudaAllocator::raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) {
  return bytes ? allocate_on(bytes, current_device(), stream) : nullptr;
}

void CudaAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}

double CudaAllocator::getMemoryFraction(DeviceIndex device) {
  DeviceMemory* memory = at(device);
  return memory ? memory->fraction : 1.0;
}

void CudaAllocator::setMemoryFraction(double fraction, DeviceIndex device) {
  TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, "the fraction of memory is ", fraction,
                    "; it must be between 0 and 1");
  on(device).set_fraction(fraction);
}

// torch.accelerator asks c10's table of allocators, where changing CUDA's leaves the old one. The
// table ignores, without a word, an allocator of lower priority than its own; torch 2.15's is not
// 0.
void CudaAllocator::init(int) {
  constexpr std::uint8_t kHighest = 255;
  initialized_ = true;
  c10::SetAllocator(c10::kCUDA, this, kHighest);
}

// Within an operator it is cuDNN's benchmark that asks, after each new shape: what it would give
// back is needed again by the next operator.
void CudaAllocator::emptyCache(MempoolId) {
  if (InOperator::state.depth > 0) return;
  for (const auto& memory : memory_) {
    DeviceMemory* found = memory.load(std::memory_order_acquire);
    if (found && !found->graphs.routing()) found->pool.trim();
  }
}

// cuDNN's benchmark asks how much it may try; evicting for an experiment would be folly.
void CudaAllocator::cacheInfo(DeviceIndex device, std::size_t* largest) {
  DeviceMemory* memory = at(device);
  *largest = static_cast<std::size_t>(memory ? memory->pool.stats().largest_hole : options_.budget);
}

void* CudaAllocator::getBaseAllocation(void* data, std::size_t* size) {
  DeviceMemory* memory = DeviceMemory::owner_of(data);
  Block* block = memory ? memory->pool.find(data) : nullptr;
  TORCH_CHECK(block, "no live block of dtr_alloc starts at ", data);
  if (size) *size = static_cast<std::size_t>(block->size);
  return data;
}

void CudaAllocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  DeviceMemory* memory = DeviceMemory::owner_of(data.get());
  Block* block = memory ? memory->pool.find(data.get()) : nullptr;
  if (!block) return;
  memory->pool.record_stream(block, named(stream.stream()));
  memory->graphs.share(block);
}

c10::CachingDeviceAllocator::DeviceStats CudaAllocator::getDeviceStats(DeviceIndex device) {
  DeviceMemory* memory = at(device);
  return memory ? memory->stats() : c10::CachingDeviceAllocator::DeviceStats{};
}

void CudaAllocator::resetAccumulatedStats(DeviceIndex device) {
  if (DeviceMemory* memory = at(device)) memory->reset_accumulated();
}

void CudaAllocator::resetPeakStats(DeviceIndex device) {
  if (DeviceMemory* memory = at(device)) memory->pool.reset_peak();
}

c10::cuda::CUDACachingAllocator::SnapshotInfo CudaAllocator::snapshot(MempoolId id, bool) {
  c10::cuda::CUDACachingAllocator::SnapshotInfo info{};
  for (const auto& memory : memory_) {
    DeviceMemory* found = memory.load(std::memory_order_acquire);
    if (!found) continue;
    info.device_traces.resize(static_cast<std::size_t>(found->device) + 1);
    for (auto& segment : found->segments(id)) info.segments.push_back(std::move(segment));
  }
  info.config_metadata.expandable_segments = true;
  info.config_metadata.last_allocator_settings = "dtr_alloc";
  return info;
}

// ---- Graph capture and MemPools

void CudaAllocator::beginAllocateToPool(DeviceIndex device, MempoolId id,
                                        std::function<bool(cudaStream_t)> filter) {
  on(device).begin_capture(id, [filter = std::move(filter)](Stream stream) {
    return filter(reinterpret_cast<cudaStream_t>(stream));
  });
}

void CudaAllocator::endAllocateToPool(DeviceIndex device, MempoolId id) {
  on(device).end_capture(id);
}

void CudaAllocator::releasePool(DeviceIndex device, MempoolId id) {
  if (DeviceMemory* memory = at(device)) memory->graphs.release(id);
}

int CudaAllocator::getPoolUseCount(DeviceIndex device, MempoolId id) {
  DeviceMemory* memory = at(device);
  return memory ? memory->graphs.uses(id) : 0;
}

void CudaAllocator::createOrIncrefPool(DeviceIndex device, MempoolId id,
                                       std::shared_ptr<CUDAAllocator> allocator) {
  TORCH_CHECK(!allocator,
              "a MemPool with an allocator of its own cannot lie beside dtr_alloc, whose budget "
              "would not bound it: make it without one, torch.cuda.MemPool()");
  on(device).graphs.use(id);
}

void CudaAllocator::setUseOnOOM(DeviceIndex, MempoolId, bool use_on_oom) {
  TORCH_CHECK(!use_on_oom, "MemPool(use_on_oom=True) is not served by dtr_alloc: its pool is full "
                           "only when nothing is left to evict; leave the option out");
}

void CudaAllocator::setNoSplit(DeviceIndex, MempoolId) {}  // Every tensor is a block of its own.

bool CudaAllocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId id,
                                             const std::unordered_set<void*>& expected) {
  DeviceMemory* memory = at(device);
  if (!memory) return expected.empty();
  std::vector<const Block*> live = memory->graphs.live(id);
  if (live.size() != expected.size()) return false;
  for (const Block* block : live) {
    if (!expected.contains(memory->pool.data(block))) return false;
  }
  return true;
}

std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> CudaAllocator::getCheckpointState(
    DeviceIndex, MempoolId) {
  TORCH_CHECK(false, "dtr_alloc keeps no checkpoints of a graph's memory, which CUDA graph trees "
                     "(torch.compile with mode=\"reduce-overhead\") need: use mode=\"default\" or "
                     "\"max-autotune-no-cudagraphs\"");
}

c10::cuda::CUDACachingAllocator::CheckpointDelta CudaAllocator::setCheckpointPoolState(
    DeviceIndex device, std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState>) {
  getCheckpointState(device, {0, 0});
  return {};
}

// ---- What we refuse

c10::cuda::CUDACachingAllocator::ShareableHandle CudaAllocator::shareIpcHandle(void*) {
  TORCH_CHECK(false, "a CUDA tensor of dtr_alloc cannot be shared with another process, since its "
                     "pages may move: send a copy on the host, tensor.cpu()");
}

std::shared_ptr<void> CudaAllocator::getIpcDevPtr(std::string) {
  TORCH_CHECK(false, "dtr_alloc does not open CUDA tensors of other processes: have them sent from "
                     "the host, tensor.cpu()");
}

void CudaAllocator::recordHistory(bool enabled, c10::cuda::CUDACachingAllocator::CreateContextFn,
                                  std::size_t, c10::cuda::CUDACachingAllocator::RecordContext, bool,
                                  const std::vector<std::string>&) {
  TORCH_CHECK(!enabled, "dtr_alloc keeps no history of allocations: take "
                        "torch.cuda.memory._snapshot() without _record_memory_history(), which "
                        "shows what is in memory now");
}

void CudaAllocator::attachOutOfMemoryObserver(
    c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) {
  std::lock_guard<std::mutex> guard(mutex_);
  observers_.push_back(std::move(observer));
}

void CudaAllocator::attachAllocatorTraceTracker(
    c10::cuda::CUDACachingAllocator::AllocatorTraceTracker) {
  TORCH_CHECK(false, "dtr_alloc does not report its pages to NCCL: unset "
                     "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK");
}

void CudaAllocator::enablePeerAccess(DeviceIndex device, DeviceIndex peer) {
  TORCH_CHECK(false, "memory of dtr_alloc on device ", static_cast<int>(peer),
              " is not mapped for device ", static_cast<int>(device),
              ": copy by way of the host, tensor.cpu().to(...)");
}

cudaError_t CudaAllocator::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                       std::size_t bytes, cudaStream_t stream, bool) {
  if (to_device == from_device) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

}  // namespace dtr
