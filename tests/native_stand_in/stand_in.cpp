// A CUDA allocator that stands in for torch's own, on the fake driver: for tests of guest mode.
//
// It is a model of what a guest meets: segments of a stream and a size class, blocks that are split
// and merged, streams that a freed block waits for, a cache that is given back before a request
// fails, figures, observers, a deleter that recordStream insists on, and Python's lock where memory
// history takes it. Every call is logged, so that a test can compare what a guest was asked with
// what it asked. Source: torch's c10/cuda/CUDACachingAllocator.cpp.

#include <c10/core/TensorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

#include "dtr_alloc/csrc/cuda/driver.h"

extern "C" int PyGILState_Ensure();
extern "C" void PyGILState_Release(int);
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;
using dtr::cuda::Physical;
using dtr::cuda::Pointer;
using Count = std::size_t;

constexpr Count kMib = Count{1} << 20;

struct Segment {
  Pointer base;
  Count size;
  cudaStream_t stream;
  bool small;
  Physical physical;
};

struct Block {
  Count size;
  Segment* segment;
  bool live = false;
  std::set<cudaStream_t> uses;
};

struct Settings {
  int takes_python = 0;  // In malloc and free.
  int fails = 0;         // So many requests from now on.
} settings;

template <class Function>
Function* driver(const char* name) {
  static void* const library = dlopen(getenv("DTR_ALLOC_LIBCUDA"), RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Late, so that a thread that has Python's lock surely runs meanwhile: whoever holds a lock here
// that such a thread waits for hangs.
void take_python() {
  if (!settings.takes_python) return;
  usleep(300);
  PyGILState_Release(PyGILState_Ensure());
}

void bump(StatArray& stats, std::int64_t by) {
  by > 0 ? stats[0].increase(static_cast<Count>(by)) : stats[0].decrease(static_cast<Count>(-by));
}

class StandIn final : public CUDAAllocator {
 public:
  static void dispose(void* data);

  // ---- The model

  void* get(Count bytes, cudaStream_t stream) {
    if (bytes == 0) return nullptr;
    take_python();
    std::unique_lock lock(mutex_);
    const Count size = (bytes + 511) / 512 * 512;
    const bool small = size <= kMib;
    bool refused = settings.fails > 0 && settings.fails--;
    auto found = refused ? blocks_.end() : fitting(size, stream, small);
    if (!refused && found == blocks_.end()) found = grow(size, stream, small);
    if (!refused && found == blocks_.end()) {
      ++stats_.num_alloc_retries;
      flush();
      found = grow(size, stream, small);
    }
    if (found == blocks_.end()) {
      ++stats_.num_ooms;
      const auto observers = observers_;
      lock.unlock();
      for (const auto& observer : observers) observer(0, bytes, 0, 0);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes);
    }
    Block& block = found->second;
    const Count rest = block.size - size;
    if (small ? rest > 0 : rest > kMib) {
      blocks_[found->first + size] = {rest, block.segment};
      block.size = size;
    }
    block.live = true;
    bump(stats_.allocated_bytes, static_cast<std::int64_t>(block.size));
    bump(stats_.allocation, 1);
    return reinterpret_cast<void*>(found->first);
  }

  void put(void* data) {
    if (!data) return;
    take_python();
    const std::lock_guard lock(mutex_);
    ++frees_;
    const auto at = blocks_.find(reinterpret_cast<Pointer>(data));
    TORCH_CHECK(at != blocks_.end() && at->second.live, "the stand-in did not give this");
    at->second.live = false;
    bump(stats_.allocated_bytes, -static_cast<std::int64_t>(at->second.size));
    bump(stats_.allocation, -1);
    merge(at);
  }

  bool idle(const Block& block) const {
    auto* const queued = driver<long(std::uintptr_t)>("fakecuda_queued");
    return std::all_of(block.uses.begin(), block.uses.end(), [&](cudaStream_t stream) {
      try {
        return queued(reinterpret_cast<std::uintptr_t>(stream)) == 0;
      } catch (const std::out_of_range&) {
        return true;  // Never made: a name alone.
      }
    });
  }

  std::map<Pointer, Block>::iterator fitting(Count size, cudaStream_t stream, bool small) {
    auto best = blocks_.end();
    for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
      Block& block = at->second;
      if (!block.live && !block.uses.empty() && idle(block)) block.uses.clear();
      const bool ours = block.segment->stream == stream && block.segment->small == small;
      if (block.live || !block.uses.empty() || !ours || block.size < size) continue;
      if (best == blocks_.end() || block.size < best->second.size) best = at;
    }
    return best;
  }

  std::map<Pointer, Block>::iterator grow(Count size, cudaStream_t stream, bool small) {
    Count bytes = (size + 2 * kMib - 1) / (2 * kMib) * (2 * kMib);
    if (!small && size < 10 * kMib) bytes = 20 * kMib;
    dtr::cuda::AllocationProp prop{};
    prop.type = dtr::cuda::kMemoryPinned;
    prop.location = {dtr::cuda::kLocationDevice, 0};
    Segment segment{0, bytes, stream, small, 0};
    driver<int(unsigned)>("cuInit")(0);
    if (driver<int(Physical*, Count, const void*, unsigned long long)>("cuMemCreate")(
            &segment.physical, bytes, &prop, 0)) {
      return blocks_.end();
    }
    driver<int(Pointer*, Count, Count, Pointer, unsigned long long)>("cuMemAddressReserve")(
        &segment.base, bytes, 0, 0, 0);
    driver<int(Pointer, Count, Count, Physical, unsigned long long)>("cuMemMap")(
        segment.base, bytes, 0, segment.physical, 0);
    dtr::cuda::AccessDesc access{};
    access.location = prop.location;
    access.flags = dtr::cuda::kAccessReadWrite;
    driver<int(Pointer, Count, const void*, Count)>("cuMemSetAccess")(segment.base, bytes, &access,
                                                                      1);
    segments_.push_back(std::make_unique<Segment>(segment));
    bump(stats_.reserved_bytes, static_cast<std::int64_t>(bytes));
    return blocks_.insert({segment.base, {bytes, segments_.back().get()}}).first;
  }

  // The cache goes back to the driver, once work that uses it is done.
  void flush() {
    driver<void()>("fakecuda_finish")();
    for (auto at = blocks_.begin(); at != blocks_.end();) {
      const auto here = at++;
      Segment* segment = here->second.segment;
      if (here->second.live || here->second.size != segment->size) continue;
      driver<int(Pointer, Count)>("cuMemUnmap")(segment->base, segment->size);
      driver<int(Pointer, Count)>("cuMemAddressFree")(segment->base, segment->size);
      driver<int(Physical)>("cuMemRelease")(segment->physical);
      bump(stats_.reserved_bytes, -static_cast<std::int64_t>(segment->size));
      blocks_.erase(here);
      std::erase_if(segments_, [&](const auto& one) { return one.get() == segment; });
    }
  }

  void merge(std::map<Pointer, Block>::iterator at) {
    const auto joins = [](const Block& a, const Block& b) {
      return !a.live && !b.live && a.segment == b.segment;
    };
    const auto join = [&](auto first, auto second) {
      first->second.size += second->second.size;
      first->second.uses.merge(second->second.uses);
      blocks_.erase(second);
      return first;
    };
    if (at != blocks_.begin() && joins(std::prev(at)->second, at->second)) {
      at = join(std::prev(at), at);
    }
    const auto next = std::next(at);
    if (next != blocks_.end() && joins(at->second, next->second)) join(at, next);
  }

  // ---- What torch calls

  template <class... Parts>
  void log(const Parts&... parts) {
    const std::lock_guard lock(mutex_);
    log_ += c10::str(parts..., "\n");
  }

  c10::DataPtr allocate(Count bytes) override {
    log("allocate ", bytes);
    void* data = get(bytes, nullptr);
    return {data, data, raw_deleter(), c10::Device(c10::kCUDA, 0)};
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    log_in_const("is_simple_data_ptr");
    return CUDAAllocator::is_simple_data_ptr(data);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &dispose; }
  void copy_data(void*, const void*, Count bytes) const override {
    log_in_const("copy_data " + std::to_string(bytes));
  }
  void log_in_const(const std::string& text) const { const_cast<StandIn*>(this)->log(text); }
  bool initialized() override { return true; }
  void emptyCache(MempoolId_t id = {0, 0}) override {
    log("emptyCache ", id.first);
    const std::lock_guard lock(mutex_);
    if (id.first == 0) flush();
  }
  DeviceStats getDeviceStats(DeviceIndex) override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    log("resetAccumulatedStats ", int(device));
    stats_.num_ooms = 0;
  }
  void resetPeakStats(DeviceIndex device) override {
    log("resetPeakStats ", int(device));
    stats_.allocated_bytes[0].reset_peak();
  }
  std::pair<Count, Count> getMemoryInfo(DeviceIndex device) override {
    log("getMemoryInfo ", int(device));
    return {1, 2};
  }
  void* raw_alloc(Count bytes) override {
    log("raw_alloc ", bytes);
    return get(bytes, nullptr);
  }
  void* raw_alloc_with_stream(Count bytes, cudaStream_t stream) override {
    log("raw_alloc_with_stream ", bytes, " ", reinterpret_cast<std::uintptr_t>(stream));
    return get(bytes, stream);
  }
  void raw_delete(void* data) override {
    log("raw_delete");
    put(data);
  }
  void init(int devices) override { log("init ", devices); }
  double getMemoryFraction(DeviceIndex device) override {
    log("getMemoryFraction ", int(device));
    return 0.25;
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    log("setMemoryFraction ", fraction, " ", int(device));
  }
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    log("getExpandableSegmentSizes ", int(device));
    return {{nullptr, true, 7}};
  }
  void enable(bool on) override {
    log("enable ", on);
    enabled_ = on;
  }
  bool isEnabled() const override { return enabled_; }
  void cacheInfo(DeviceIndex device, Count* largest) override {
    log("cacheInfo ", int(device));
    *largest = 11;
  }
  void* getBaseAllocation(void* data, Count* size) override {
    log("getBaseAllocation");
    *size = 12;
    return data;
  }
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    const bool known = data.get_deleter() == raw_deleter();
    log("recordStream ", stream.id(), known ? "" : " ignored");
    const std::lock_guard lock(mutex_);
    const auto at = blocks_.find(reinterpret_cast<Pointer>(data.get()));
    if (!known || at == blocks_.end()) return;
    auto* handle = reinterpret_cast<cudaStream_t>(stream.id());
    if (handle != at->second.segment->stream) at->second.uses.insert(handle);
  }
  SnapshotInfo snapshot(MempoolId_t id = {0, 0}, bool include_traces = true) override {
    log("snapshot ", id.first, " ", include_traces);
    SnapshotInfo info{};
    info.segments.resize(3);
    return info;
  }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                           std::function<bool(cudaStream_t)> filter) override {
    log("beginAllocateToPool ", int(device), " ", id.first, " ", filter(nullptr));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t id) override {
    log("endAllocateToPool ", int(device), " ", id.first);
  }
  void releasePool(DeviceIndex device, MempoolId_t id) override {
    log("releasePool ", int(device), " ", id.first);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t id) override {
    log("getPoolUseCount ", int(device), " ", id.first);
    return 4;
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t id,
                          std::shared_ptr<CUDAAllocator> allocator = nullptr) override {
    log("createOrIncrefPool ", int(device), " ", id.first, " ", allocator != nullptr);
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool use) override {
    log("setUseOnOOM ", int(device), " ", id.first, " ", use);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t id) override {
    log("setNoSplit ", int(device), " ", id.first);
  }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id,
                                const std::unordered_set<void*>& expected) override {
    log("checkPoolLiveAllocations ", int(device), " ", id.first, " ", expected.size());
    return true;
  }
  ShareableHandle shareIpcHandle(void*) override {
    log("shareIpcHandle");
    return {5, "handle"};
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    log("getIpcDevPtr ", handle);
    return nullptr;
  }
  bool isHistoryEnabled() override {
    log("isHistoryEnabled");
    return true;
  }
  void recordHistory(bool enabled, CreateContextFn, Count entries, RecordContext when, bool clear,
                     const std::vector<std::string>& skipped) override {
    log("recordHistory ", enabled, " ", entries, " ", int(when), " ", clear, " ", skipped.size());
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& text) override {
    log("recordAnnotation ", text.size());
  }
  void pushCompileContext(std::string& context) override { log("pushCompileContext ", context); }
  void popCompileContext() override { log("popCompileContext"); }
  void setUserMetadata(const std::string& text) override { log("setUserMetadata ", text); }
  std::string getUserMetadata() override {
    log("getUserMetadata");
    return "metadata";
  }
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    log("attachOutOfMemoryObserver");
    observers_.push_back(std::move(observer));
  }
  void attachAllocatorTraceTracker(AllocatorTraceTracker) override {
    log("attachAllocatorTraceTracker");
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override {
    log("enablePeerAccess ", int(device), " ", int(peer));
  }
  cudaError_t memcpyAsync(void*, int to, const void*, int from, Count bytes, cudaStream_t,
                          bool p2p) override {
    log("memcpyAsync ", to, " ", from, " ", bytes, " ", p2p);
    return cudaSuccess;
  }
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t id) override {
    log("getCheckpointState ", int(device), " ", id.first);
    return std::make_shared<AllocatorState>();
  }
  CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                         std::shared_ptr<AllocatorState> state) override {
    log("setCheckpointPoolState ", int(device), " ", state != nullptr);
    return {};
  }
  std::string name() override { return "native"; }

  // Of later torches than 2.11.
  void markCaptureBegin(DeviceIndex device) { log("markCaptureBegin ", int(device)); }
  void markCaptureEnd(DeviceIndex device) { log("markCaptureEnd ", int(device)); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void*) {
    log("getContextForPointer");
    return nullptr;
  }
  bool supportsUserMetadata() {
    log("supportsUserMetadata");
    return true;
  }
  void annotateMemory(const void*, const std::string& text) { log("annotateMemory ", text); }
  void attachOomRejectionObserver(std::function<void(std::int64_t, Count, Count, Count)>) {
    log("attachOomRejectionObserver");
  }
  c10::DataPtr allocateWithAddress(Count bytes, void* address) {
    log("allocateWithAddress ", bytes, " ", reinterpret_cast<std::uintptr_t>(address));
    void* data = get(bytes, nullptr);
    return {data, data, raw_deleter(), c10::Device(c10::kCUDA, 0)};
  }

  std::string log_;
  long frees_ = 0;
  DeviceStats stats_{};

 private:
  std::recursive_mutex mutex_;
  std::map<Pointer, Block> blocks_;
  std::deque<std::unique_ptr<Segment>> segments_;
  std::vector<OutOfMemoryObserver> observers_;
  std::atomic<bool> enabled_{true};
};

StandIn& stand_in() {
  static StandIn& instance = *new StandIn;
  return instance;
}

void StandIn::dispose(void* data) { stand_in().put(data); }

// Calls every virtual as torch would, through torch's type; what each returned is in the text.
template <class Allocator>
std::string call_all(Allocator& a) {
  std::string told;
  const auto tell = [&](const auto& value) { told += c10::str(value, ";"); };
  c10::DataPtr data = a.allocate(100);
  a.raw_deallocate(a.raw_allocate(100));
  tell(a.is_simple_data_ptr(data));
  tell(a.raw_deleter() == &StandIn::dispose);
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

CUDAAllocator& allocator_at(std::uintptr_t address) {
  return address ? *reinterpret_cast<CUDAAllocator*>(address) : stand_in();
}

std::vector<c10::DataPtr>& held() {
  static auto& instance = *new std::vector<c10::DataPtr>;
  return instance;
}

}  // namespace

// `address`: of the allocator to call; 0 for the stand-in.
EXPORT std::uintptr_t standin_address() {
  return reinterpret_cast<std::uintptr_t>(static_cast<CUDAAllocator*>(&stand_in()));
}
EXPORT const char* standin_call_all(std::uintptr_t address) {
  static std::string told;
  try {
    told = call_all(allocator_at(address));
  } catch (const std::exception& error) {
    told = error.what();
  }
  return told.c_str();
}
EXPORT const char* standin_log() {
  static std::string taken;
  taken = std::exchange(stand_in().log_, "");
  return taken.c_str();
}
EXPORT void standin_takes_python(int on) { settings.takes_python = on; }
EXPORT void standin_fails(int count) { settings.fails = count; }
EXPORT void standin_enable(int on) { stand_in().enable(on); }
EXPORT long standin_frees() { return stand_in().frees_; }
EXPORT long standin_live() { return stand_in().stats_.allocated_bytes[0].current; }
EXPORT long standin_peak() { return stand_in().stats_.allocated_bytes[0].peak; }
EXPORT long standin_num_ooms(std::uintptr_t address) {
  return allocator_at(address).getDeviceStats(0).num_ooms;
}
EXPORT long standin_retries() { return stand_in().stats_.num_alloc_retries; }
EXPORT void standin_reset() {
  stand_in().stats_.num_ooms = stand_in().stats_.num_alloc_retries = 0;
  stand_in().stats_.allocated_bytes[0].reset_peak();
  stand_in().emptyCache();
  stand_in().log_.clear();
}
// Whether it was served: the block is then the next one held, from 0 on.
EXPORT int standin_hold(std::uintptr_t address, Count bytes) {
  try {
    held().push_back(allocator_at(address).allocate(bytes));
    return 1;
  } catch (const c10::OutOfMemoryError&) {
    return 0;
  }
}
EXPORT void standin_drop_all() { held().clear(); }
EXPORT void standin_observe(std::uintptr_t address, void (*told)(long)) {
  allocator_at(address).attachOutOfMemoryObserver(
      [told](std::int64_t, Count bytes, Count, Count) { told(static_cast<long>(bytes)); });
}
// A MemPool with the named allocator, as torch hands it over.
EXPORT void standin_create_pool(std::uintptr_t address, std::uintptr_t allocator) {
  allocator_at(address).createOrIncrefPool(
      0, {9, 0}, std::shared_ptr<CUDAAllocator>(&allocator_at(allocator), [](auto*) {}));
}
EXPORT void standin_capture(std::uintptr_t address, int begin) {
  begin ? allocator_at(address).beginAllocateToPool(0, {9, 0}, [](cudaStream_t) { return true; })
        : allocator_at(address).endAllocateToPool(0, {9, 0});
}
// Without asking torch for the storage, which would tell that its memory is handed out.
EXPORT void standin_record_stream(std::uintptr_t address, const void* tensor,
                                  std::uintptr_t stream) {
  const auto& data = static_cast<const c10::TensorImpl*>(tensor)->unsafe_storage().data_ptr();
  allocator_at(address).recordStream(
      data, c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED,
                                  c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0),
                                              static_cast<c10::StreamId>(stream))));
}
