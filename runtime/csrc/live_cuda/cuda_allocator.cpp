#include "runtime/csrc/live_cuda/cuda_allocator.h"

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
    std::vector<caching::OutOfMemoryObserver> observers;
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
  const Stream user = named(stream.stream());
  memory->pool.record_stream(block, user);
  memory->graphs.share(block, user);
}

caching::SnapshotInfo CudaAllocator::snapshot(MempoolId id, bool) {
  caching::SnapshotInfo info{};
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

}  // namespace dtr
