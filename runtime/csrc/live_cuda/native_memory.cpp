#include "runtime/csrc/live_cuda/native_memory.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "dtr_alloc/pool/csrc/cuda/driver.h"
#include "dtr_alloc/pool/csrc/cuda/events.h"
#include "dtr_alloc/pool/csrc/insist.h"

namespace dtr {
namespace {

constexpr Bytes kSmall = Bytes{1} << 20;
constexpr int kMostFailures = 3;  // After which all is evicted.
constexpr int kMostLooks = 8;
constexpr std::chrono::seconds kLongestWait{1};

// Of small and large blocks together.
c10::CachingAllocator::Stat whole(const c10::CachingAllocator::StatArray& figures) {
  return figures[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

thread_local std::exception_ptr failure;
thread_local Block handed_out;

// Not by getStreamFromExternal, which asks the driver of a stream that is not its own.
c10::cuda::CUDAStream named(Stream stream, c10::DeviceIndex device) {
  return c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED,
                               c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, device),
                                           static_cast<c10::StreamId>(stream)));
}

}  // namespace

CurrentWork current_cuda_work() {
  return {.device =
              [] {
                c10::DeviceIndex device = -1;
                C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
                return device;
              },
          .stream =
              [](c10::DeviceIndex device) {
                return reinterpret_cast<Stream>(c10::cuda::getCurrentCUDAStream(device).stream());
              }};
}

NativeMemory::NativeMemory(Native& native, c10::DeviceIndex device, Bytes budget, CurrentWork work,
                           c10::DeleterFnPtr deleter)
    : Memory(0), native_(native), device_(device), work_(work), deleter_(deleter), limit_(budget) {}

Memory::Handle NativeMemory::create(Native& native, c10::DeviceIndex device, Bytes budget,
                                    CurrentWork work, c10::DeleterFnPtr deleter) {
  insist(budget > 0 && budget <= kLargestBudget,
         "a guest's budget must be above 0 and at most 16 TiB");
  return Handle(new NativeMemory(native, device, budget, work, deleter));
}

// ---- Requests

// The session may ask for memory of this device while another is the thread's own.
void* NativeMemory::ask(Bytes size, Stream stream) {
  std::optional<c10::cuda::CUDAGuard> guard;
  if (work_.device() != device_) guard.emplace(device_);
  return native_.raw_alloc_with_stream(static_cast<std::size_t>(size),
                                       reinterpret_cast<cudaStream_t>(stream));
}

Block* NativeMemory::allocate(Bytes size, Fit fit, Stream stream) {
  if (size < 0) throw std::invalid_argument("the size of a block must not be negative");
  const Bytes asked = std::max(size, Bytes{1});  // Of nothing there is no address to know.
  const Bytes charge = asked > kLargestBudget ? asked : this->charge(asked);
  failure = nullptr;
  if (!reserve(charge, fit)) {
    ++failures_;
    return nullptr;
  }
  void* data = nullptr;
  try {
    data = ask(asked, stream);
  } catch (const c10::OutOfMemoryError& error) {
    turned_down(charge, fit);
    failure = std::current_exception();
    throw MachineIsFull(error.what_without_backtrace());
  } catch (...) {
    const std::lock_guard lock(mutex_);
    answer(charge);
    throw;
  }
  served(charge, fit);
  handed_out = Block{.offset = static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(data)),
                     .size = round_to_granule(asked),
                     .free = false};
  return &handed_out;
}

bool NativeMemory::reserve(Bytes charge, Fit fit) {
  std::unique_lock lock(mutex_);
  const auto room = [&] {
    return (fit == Fit::kBeyond ? limit_.load() : std::min(limit_.load(), cap_)) - charge;
  };
  if (room() < 0) return false;
  if (bound_ > room()) {
    bound_ = look(lock);  // Which opens it: the limit may be another one now.
    if (bound_ > room()) return false;
  }
  bound_ += charge;
  in_flight_ += charge;
  return true;
}

void NativeMemory::served(Bytes charge, Fit fit) {
  const std::lock_guard lock(mutex_);
  answer(charge);
  failures_in_a_row_ = 0;
  if (cap_ == kLargestBudget) return;
  raise_cap(charge);
  if (fit == Fit::kBeyond) cap_ = std::max(cap_, bound_);  // So much there is.
}

void NativeMemory::raise_cap(Bytes charge) {
  cap_ = std::min(cap_ + (charge >> rise_), kLargestBudget - 1);
  if (rise_ == kFastestRise || cap_ - refused_at_ <= refused_at_ >> 6) return;
  --rise_;
  refused_at_ = cap_;
}

void NativeMemory::drop_cap() {
  cap_ = kLargestBudget;
  rise_ = kFastestRise;
}

// With Fit::kBeyond nothing is left to evict, and what failed is no measure for other requests.
void NativeMemory::turned_down(Bytes charge, Fit fit) {
  std::unique_lock lock(mutex_);
  ++recovered_;
  answer(charge);
  bound_ = look(lock);
  if (fit == Fit::kBeyond) {
    drop_cap();
    failures_in_a_row_ = 0;
    return;
  }
  if (failures_in_a_row_ == 0) rise_ = std::min(rise_ + 1, kSlowestRise);
  refused_at_ = bound_ + charge;
  const Bytes surplus = bound_ >> 6 << 2 * std::min(failures_in_a_row_, kMostFailures);
  cap_ = std::min(cap_, bound_ - surplus);
  ++failures_in_a_row_;
}

std::exception_ptr NativeMemory::take_failure() {
  std::exception_ptr taken = std::exchange(failure, nullptr);
  if (taken) --recovered_;
  return taken;
}

void NativeMemory::forget_bound() {
  const std::lock_guard lock(mutex_);
  bound_ = kLargestBudget;
  ++changes_;
}

void NativeMemory::forget_cap() {
  const std::lock_guard lock(mutex_);
  drop_cap();
}

// ---- What a session tracks

Block* NativeMemory::find(const void* data) const {
  const std::lock_guard lock(mutex_);
  const auto found = tracked_.find(data);
  return found == tracked_.end() ? nullptr : const_cast<Tracked*>(&found->second);
}

Block* NativeMemory::adopt(void* data, Bytes size) {
  if (data == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto [at, fresh] = tracked_.try_emplace(data);
  insist(fresh, "memory must not be tracked twice");
  Tracked& block = at->second;
  block.offset = static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(data));
  block.size = round_to_granule(std::max(size, Bytes{1}));
  block.free = false;
  return &block;
}

// Torch knows which of the streams the block was made for, and passes over that one.
void NativeMemory::disown(Block* block) {
  decltype(tracked_)::node_type node;
  {
    const std::lock_guard lock(mutex_);
    node = tracked_.extract(data(block));
    insist(!node.empty(), "a block must not be disowned twice");
  }
  for (const Stream stream : node.mapped().streams) {
    use_on(data(block), named(stream, device_));
  }
}

void NativeMemory::free(Block* block) {
  void* const address = data(block);
  disown(block);
  native_.raw_delete(address);
}

// Torch passes over a DataPtr with another deleter than its own, such as a tracked tensor's.
void NativeMemory::use_on(void* data, c10::cuda::CUDAStream stream) {
  at::DataPtr shown(data, data, deleter_, c10::Device(c10::kCUDA, device_));
  try {
    native_.recordStream(shown, stream);
  } catch (...) {
    shown.release_context();
    throw;
  }
  shown.release_context();
}

// ---- Streams

// The number of a stream, which may be new. The mutex is held.
std::int32_t NativeMemory::meet(Stream stream) {
  if (!order_) {
    order_ = std::make_unique<StreamOrder>(
        cuda::make_events(std::make_shared<cuda::PrimaryContext>(cuda::load(), device_)));
  }
  const std::int32_t number = order_->index(stream);
  if (std::ranges::find(streams_, stream) == streams_.end()) streams_.push_back(stream);
  if (streams_.size() > 1) many_streams_ = true;
  return number;
}

void NativeMemory::meet_stream(Stream stream) {
  const std::lock_guard lock(mutex_);
  meet(stream);
}

void NativeMemory::record_stream(Block* block, Stream stream) {
  const std::lock_guard lock(mutex_);
  std::vector<Stream>& streams = static_cast<Tracked*>(block)->streams;
  if (std::ranges::find(streams, stream) == streams.end()) streams.push_back(stream);
}

void NativeMemory::record_every_stream(Block* block) {
  const std::lock_guard lock(mutex_);
  static_cast<Tracked*>(block)->streams = streams_;
}

void NativeMemory::gather_streams(Stream stream) {
  const std::lock_guard lock(mutex_);
  const std::int32_t number = meet(stream);
  order_->poll();  // Gives the events of earlier calls back.
  order_->gather(number);
}

void NativeMemory::spread_stream(Stream stream) {
  const std::lock_guard lock(mutex_);
  const std::int32_t number = meet(stream);
  order_->poll();
  order_->spread(number);
}

// Its name must not be told to torch any more, which would record an event on it.
void NativeMemory::retire_stream(Stream stream) {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(streams_, stream) == streams_.end()) return;
  order_->retire(stream);
  for (auto& [address, block] : tracked_) std::erase(block.streams, stream);
  std::erase(streams_, stream);  // Last: a call that failed may be repeated.
}

// ---- Figures

// Torch splits off no rest below a MiB.
Bytes NativeMemory::charge(Bytes size) const {
  const Bytes rounded = round_to_granule(size);
  return rounded <= kSmall ? rounded : rounded + kSmall;
}

Bytes NativeMemory::live() const {
  std::unique_lock lock(mutex_);
  return look(lock);
}

// A request that has just been served is in the books, and in flight until its thread says so. Both
// are counted until then: no thread can tell which requests the books have.
Bytes NativeMemory::settled_live(Bytes enough) const {
  const auto until = std::chrono::steady_clock::now() + kLongestWait;
  std::unique_lock lock(mutex_);
  for (;;) {
    const Bytes bound = look(lock);
    if (bound <= enough || in_flight_ == 0) return bound;
    if (std::chrono::steady_clock::now() > until) return bound;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
  }
}

// A request is in flight until the books have it, and for a moment longer. The books may be torch's
// alone for long, while it asks the driver for memory. So our lock is open meanwhile: else that
// request would wait for us once it is served, and be counted twice.
Bytes NativeMemory::look(std::unique_lock<std::mutex>& lock) const {
  for (int i = 0; i < kMostLooks; ++i) {
    const std::int64_t before = changes_;
    lock.unlock();
    const Bytes booked = whole(books().allocated_bytes).current;
    lock.lock();
    if (changes_ == before) return booked + in_flight_;
  }
  return whole(books().allocated_bytes).current + in_flight_;  // Others never rest.
}

void NativeMemory::answer(Bytes charge) {
  in_flight_ -= charge;
  ++changes_;
}

PoolStats NativeMemory::stats() const {
  const auto books = this->books();
  const auto bytes = whole(books.allocated_bytes), blocks = whole(books.allocation);
  const auto reserved = whole(books.reserved_bytes);
  const Bytes limit = limit_;
  return {.budget = limit,
          .live = bytes.current,
          .peak = bytes.peak,
          .committed = reserved.current,
          .largest_hole = std::max<Bytes>(limit - bytes.current, 0),
          .external_fragmentation = 0,
          .live_blocks = blocks.current,
          .allocations = blocks.allocated,
          .frees = blocks.freed,
          .failures = failures_,
          .remaps = 0,
          .quarantined = 0,
          .stream_waits = 0,
          .allocated = bytes.allocated,
          .peak_committed = reserved.peak,
          .peak_blocks = blocks.peak};
}

void NativeMemory::set_limit(Bytes limit) {
  insist(limit >= 0 && limit <= kLargestBudget, "a guest's limit must be within 0 and 16 TiB");
  const std::lock_guard lock(mutex_);  // Nobody is between the look and the count.
  limit_ = limit;
}

Bytes NativeMemory::trim() {
  const Bytes before = whole(books().reserved_bytes).current;
  native_.emptyCache();
  forget_cap();
  return before - whole(books().reserved_bytes).current;
}

void NativeMemory::check() const {
  const std::lock_guard lock(mutex_);
  insist(in_flight_ >= 0, "what is asked for must not be answered twice");
  for (const auto& [address, block] : tracked_) {
    insist(data(&block) == address, "a block must be found by its address");
    insist(block.size > 0 && block.size % kGranule == 0, "a block must be whole granules");
  }
}

}  // namespace dtr
