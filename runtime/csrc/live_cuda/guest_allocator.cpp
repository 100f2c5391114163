#include "runtime/csrc/live_cuda/guest_allocator.h"

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "runtime/csrc/live/machine/python_aware_lock.h"
#include "runtime/csrc/live_cuda/device_memory.h"

namespace dtr {
namespace {

constexpr std::uint8_t kHighest = 255;  // c10's table ignores a lower priority without a word.

Stream handle(cudaStream_t stream) { return reinterpret_cast<Stream>(stream); }

// Torch 2.11 has no such member.
c10::DataPtr allocate_with_address(auto& native, std::size_t bytes, void* address) {
  if constexpr (requires { native.allocateWithAddress(bytes, address); }) {
    return native.allocateWithAddress(bytes, address);
  } else {
    TORCH_CHECK(false, "this torch has no allocateWithAddress");
  }
}

}  // namespace

GuestAllocator::GuestAllocator(Native& native, const SessionOptions& options, DeviceIndex device,
                               CurrentWork work)
    : native_(native),
      options_(options),
      device_(device),
      work_(work),
      deleter_(native.raw_deleter()) {
  TORCH_CHECK(native.name() == "native", "memory=\"torch\" needs torch's own CUDA allocator, and \"",
              native.name(), "\" is in use: unset the backend in PYTORCH_CUDA_ALLOC_CONF, and "
                             "change no allocator before");
  TORCH_CHECK(native.isEnabled(), "torch's CUDA allocator is switched off and caches nothing: "
                                  "torch.cuda.memory.caching_allocator_enable(True)");
  TORCH_CHECK(!std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING"),
              "torch's CUDA allocator is switched off by the environment and caches nothing: unset "
              "PYTORCH_NO_CUDA_MEMORY_CACHING");
}

// ---- To come and to go

void GuestAllocator::install() {
  TORCH_CHECK(!removed_, "this allocator was removed, for good: make another by "
                         "dtr_alloc.allocator()");
  Native* before = caching::allocator.load();
  TORCH_CHECK((before == &native_ || before == this) &&
                  caching::allocator.compare_exchange_strong(before, this),
              "another CUDA allocator was installed meanwhile: make dtr_alloc.allocator() after it");
  c10::SetAllocator(c10::kCUDA, this, kHighest);
}

void GuestAllocator::remove() {
  Native* self = this;
  if (!installed() && !session() && !removed_) {  // It never was, or served nothing.
    removed_ = true;
    return;
  }
  TORCH_CHECK(installed(),
              "this allocator is not torch's at present: it was not installed, was removed, or "
              "another was installed over it");
  if (Session* session = this->session()) {
    memory()->forget_cap();  // The device may have more than when it was full.
    session->scope().leave_beyond_budget();
  }
  removed_ = true;
  c10::SetAllocator(c10::kCUDA, &native_, kHighest);
  caching::allocator.compare_exchange_strong(self, &native_);
  const std::lock_guard lock(mutex_);
  for (OomObserver& observer : observers_) native_.attachOutOfMemoryObserver(std::move(observer));
  observers_.clear();
}

void GuestAllocator::serve(Session& session) {
  TORCH_CHECK(session.memory().is_torchs(), "the session's memory is not torch's");
  const auto& work = session.storages().device().work;
  total_ = work ? work->total_memory() : kLargestBudget;
  serves_ = 0;
  session_.store(&session, std::memory_order_release);
}

// Torch has found its devices, and asks c10's table as well, where change_current_allocator leaves
// the old one.
void GuestAllocator::init(int devices) {
  native_.init(devices);
  c10::SetAllocator(c10::kCUDA, this, kHighest);
}

// ---- Requests

NativeMemory* GuestAllocator::memory() const {
  Session* session = this->session();
  return session ? static_cast<NativeMemory*>(&session->memory()) : nullptr;
}

NativeMemory* GuestAllocator::memory(DeviceIndex device) const {
  return serves_ == device ? memory() : nullptr;
}

Session* GuestAllocator::make_session(DeviceIndex device) {
  const PythonAwareLock turn(switching_);
  if (!native_.isEnabled()) return nullptr;
  const std::lock_guard lock(mutex_);
  if (Session* session = this->session()) return session;
  SessionOptions options = options_;
  options.on_cuda = true;
  options.cuda_device = device;
  SessionDevice here = session_device(device, *this, deleter_);
  total_ = here.work->total_memory();
  auto session = std::make_unique<Session>(
      options, std::move(here),
      NativeMemory::create(native_, device, options.limit(), work_, deleter_));
  session->scope().claim();
  serves_ = device;
  session_.store(session.get(), std::memory_order_release);
  return session.release();
}

Session* GuestAllocator::session_for(DeviceIndex device) {
  if (removed_ || (device_ >= 0 && device_ != device) || !native_.initialized()) return nullptr;
  Session* session = this->session();
  if (!session) session = make_session(device);
  return serves_ == device ? session : nullptr;
}

// Null also where torch's allocator is switched off, or nobody could serve so much.
Session* GuestAllocator::serving(DeviceIndex device, Count bytes) {
  Session* session = bytes ? session_for(device) : nullptr;
  const bool usual = native_.isEnabled() && native_.raw_deleter() == deleter_;
  return session && usual && static_cast<Bytes>(bytes) <= total_ ? session : nullptr;
}

// Torch's own text says what the device has. The session's says what the budget has.
void* GuestAllocator::take(Session& session, Count bytes, Stream stream) {
  try {
    return session.requests().allocate(bytes, stream);
  } catch (const c10::OutOfMemoryError&) {
    auto& memory = static_cast<NativeMemory&>(session.memory());
    if (std::exception_ptr failure = memory.take_failure()) std::rethrow_exception(failure);
    throw;
  }
}

template <class Ask>
auto GuestAllocator::telling(DeviceIndex device, Count bytes, const Ask& ask) {
  std::exception_ptr error;
  try {
    return ask();
  } catch (const c10::OutOfMemoryError&) {
    error = std::current_exception();
  }
  tell_observers(device, bytes);
  std::rethrow_exception(error);
}

void GuestAllocator::tell_observers(DeviceIndex device, Count bytes) {
  std::vector<OomObserver> observers;
  {
    const std::lock_guard lock(mutex_);
    observers = observers_;
  }
  if (observers.empty()) return;
  const auto [free, total] = native_.getMemoryInfo(device);
  for (const OomObserver& observer : observers) observer(device, bytes, total, free);
}

c10::DataPtr GuestAllocator::allocate(Count bytes) {
  const DeviceIndex device = work_.device();
  return telling(device, bytes, [&] {
    Session* session = serving(device, bytes);
    if (!session) return native_.allocate(bytes);
    void* data = take(*session, bytes, work_.stream(device));
    return c10::DataPtr(data, data, deleter_, c10::Device(c10::kCUDA, device));
  });
}

void* GuestAllocator::raw_alloc(Count bytes) {
  const DeviceIndex device = work_.device();
  return telling(device, bytes, [&] {
    Session* session = serving(device, bytes);
    return session ? take(*session, bytes, work_.stream(device)) : native_.raw_alloc(bytes);
  });
}

void* GuestAllocator::raw_alloc_with_stream(Count bytes, cudaStream_t stream) {
  return allocate_on(bytes, work_.device(), stream);
}

void* GuestAllocator::allocate_on(Count bytes, DeviceIndex device, cudaStream_t stream) {
  std::optional<c10::cuda::CUDAGuard> guard;  // Torch asks which device is the thread's.
  if (work_.device() != device) guard.emplace(device);
  return telling(device, bytes, [&] {
    if (Session* session = serving(device, bytes)) return take(*session, bytes, handle(stream));
    return native_.raw_alloc_with_stream(bytes, stream);
  });
}

// It asks for one place, which an eviction cannot promise to free.
c10::DataPtr GuestAllocator::allocateWithAddress(Count bytes, void* address) {
  return telling(work_.device(), bytes, [&] {
    c10::DataPtr data = allocate_with_address(native_, bytes, address);
    if (NativeMemory* memory = this->memory()) memory->forget_bound();
    return data;
  });
}

// Within torch an observer would hear of every request that an eviction then served.
void GuestAllocator::attachOutOfMemoryObserver(OomObserver observer) {
  const std::lock_guard lock(mutex_);
  observers_.push_back(std::move(observer));
}

// ---- Streams, captures and counts

void GuestAllocator::retire_stream(Stream stream, DeviceIndex device) {
  Session* session = this->session();
  if (session && serves_ == device && !removed_) session->requests().retire_stream(stream);
}

void GuestAllocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  NativeMemory* memory = this->memory();
  const bool tracked = memory && data.get_deleter() != deleter_ && memory->find(data.get());
  tracked ? memory->use_on(data.get(), stream) : native_.recordStream(data, stream);
}

void GuestAllocator::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  recordStream(data, c10::cuda::CUDAStream(stream));
}

void GuestAllocator::beginAllocateToPool(DeviceIndex device, MempoolId id,
                                         std::function<bool(cudaStream_t)> filter) {
  Session* session = session_for(device);
  if (session) session->begin_capture();
  try {
    native_.beginAllocateToPool(device, id, std::move(filter));
  } catch (...) {
    if (session) session->end_capture();
    throw;
  }
  if (!session) return;
  const std::lock_guard lock(mutex_);
  captures_.push_back(id);
}

void GuestAllocator::endAllocateToPool(DeviceIndex device, MempoolId id) {
  native_.endAllocateToPool(device, id);
  if (serves_ != device) return;
  {
    const std::lock_guard lock(mutex_);
    const auto begun = std::ranges::find(captures_, id);
    if (begun == captures_.end()) return;  // Before the session was there.
    captures_.erase(begun);
  }
  session()->end_capture();
}

// While torch's cache is off its tensors have another deleter, and an operator that ran again would
// make such. So meanwhile nothing is recorded nor evicted, as in a capture.
void GuestAllocator::enable(bool on) {
  const PythonAwareLock turn(switching_);
  Session* session = this->session();
  if (session && !on && !off_) session->begin_capture();
  native_.enable(on);
  if (session && on && off_) session->end_capture();
  off_ = session && !on;
}

// An allocator that is asked from within torch's, whose lock is then held, must not be this one.
void GuestAllocator::createOrIncrefPool(DeviceIndex device, MempoolId id,
                                        std::shared_ptr<CUDAAllocator> allocator) {
  if (allocator.get() == this) allocator = nullptr;
  native_.createOrIncrefPool(device, id, std::move(allocator));
}

caching::CheckpointDelta GuestAllocator::setCheckpointPoolState(
    DeviceIndex device, std::shared_ptr<caching::AllocatorState> state) {
  caching::CheckpointDelta delta = native_.setCheckpointPoolState(device, std::move(state));
  if (NativeMemory* memory = this->memory(device)) memory->forget_bound();  // Blocks came alive.
  return delta;
}

c10::CachingDeviceAllocator::DeviceStats GuestAllocator::getDeviceStats(DeviceIndex device) {
  auto stats = native_.getDeviceStats(device);
  if (const NativeMemory* memory = this->memory(device)) stats.num_ooms -= memory->recovered();
  return stats;
}

void GuestAllocator::resetAccumulatedStats(DeviceIndex device) {
  native_.resetAccumulatedStats(device);
  if (NativeMemory* memory = this->memory(device)) memory->forget_recovered();
}

void GuestAllocator::emptyCache(MempoolId id) {
  native_.emptyCache(id);
  if (NativeMemory* memory = this->memory()) memory->forget_cap();
}

void GuestAllocator::setMemoryFraction(double fraction, DeviceIndex device) {
  native_.setMemoryFraction(fraction, device);
  if (NativeMemory* memory = this->memory(device)) memory->forget_cap();
}

}  // namespace dtr
