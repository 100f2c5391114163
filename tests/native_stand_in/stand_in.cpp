// A CUDA allocator that stands in for torch's own, on the fake driver, for tests of guest mode:
// memory as torch keeps it (memory.h), figures, observers, a deleter that recordStream insists on,
// Python's lock where memory history takes it, and a log of each call. Another of its kind, with
// memory and a deleter of its own, stands in for what a library brings.

#include <c10/core/TensorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/native_stand_in/call_all.h"
#include "tests/native_stand_in/memory.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace c10::cuda::CUDACachingAllocator;
using namespace stand_in;
using c10::DeviceIndex;
using c10::MempoolId_t;

class StandIn final : public CUDAAllocator {
 public:
  // As torch has them: one deleter for what its cache gives, one for what it gives without.
  StandIn(const char* name, c10::DeleterFnPtr cached, c10::DeleterFnPtr uncached)
      : name_(name), cached_(cached), uncached_(uncached) {
    log_.reserve(1 << 20);  // Some tests count the bytes that a program takes.
  }

  Memory& memory() { return memory_; }
  std::string take_log() {
    const std::lock_guard lock(mutex_);
    std::string taken = log_;
    log_.clear();
    return taken;
  }

  template <class... Parts>
  void log(const Parts&... parts) {
    const std::lock_guard lock(mutex_);
    log_ += c10::str(parts..., "\n");
  }

  c10::DataPtr allocate(Count bytes) override {
    log("allocate ", bytes);
    void* data = memory_.get(bytes, nullptr);
    return {data, data, raw_deleter(), c10::Device(c10::kCUDA, 0)};
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    log_in_const("is_simple_data_ptr");
    return CUDAAllocator::is_simple_data_ptr(data);
  }
  c10::DeleterFnPtr raw_deleter() const override { return enabled_ ? cached_ : uncached_; }
  void copy_data(void*, const void*, Count bytes) const override {
    log_in_const("copy_data " + std::to_string(bytes));
  }
  void log_in_const(const std::string& text) const { const_cast<StandIn*>(this)->log(text); }
  bool initialized() override { return true; }
  void emptyCache(MempoolId_t id = {0, 0}) override {
    log("emptyCache ", id.first);
    if (id.first == 0) memory_.flush();
  }
  DeviceStats getDeviceStats(DeviceIndex) override { return memory_.stats(); }
  void resetAccumulatedStats(DeviceIndex device) override {
    log("resetAccumulatedStats ", int(device));
    memory_.reset_failures();
  }
  void resetPeakStats(DeviceIndex device) override {
    log("resetPeakStats ", int(device));
    memory_.reset_peak();
  }
  std::pair<Count, Count> getMemoryInfo(DeviceIndex device) override {
    log("getMemoryInfo ", int(device));
    return {1, 2};
  }
  void* raw_alloc(Count bytes) override {
    log("raw_alloc ", bytes);
    return memory_.get(bytes, nullptr);
  }
  void* raw_alloc_with_stream(Count bytes, cudaStream_t stream) override {
    log("raw_alloc_with_stream ", bytes, " ", reinterpret_cast<std::uintptr_t>(stream));
    return memory_.get(bytes, stream);
  }
  void raw_delete(void* data) override {
    log("raw_delete");
    memory_.put(data);
  }
  void init(int devices) override { log("init ", devices); }
  double getMemoryFraction(DeviceIndex device) override {
    log("getMemoryFraction ", int(device));
    return 0.25;
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    log("setMemoryFraction ", fraction, " ", int(device));
    memory_.set_fraction(fraction);
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
    const bool known = data.get_deleter() == cached_;
    log("recordStream ", stream.id(), known ? "" : " ignored");
    if (known) memory_.uses(data.get(), reinterpret_cast<cudaStream_t>(stream.id()));
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
  ShareableHandle shareIpcHandle(void* data) override {
    log("shareIpcHandle ", reinterpret_cast<std::uintptr_t>(data));
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
    memory_.observe(std::move(observer));
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
  std::string name() override { return name_; }

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
    void* data = memory_.get(bytes, nullptr);
    return {data, data, raw_deleter(), c10::Device(c10::kCUDA, 0)};
  }

 private:
  const std::string name_;
  const c10::DeleterFnPtr cached_, uncached_;
  Memory memory_;
  std::mutex mutex_;  // Of the log.
  std::string log_;
  std::atomic<bool> enabled_{true};
};

template <StandIn& (*instance)(), bool cached>
void dispose(void* data) {
  instance().memory().put(data);
}

StandIn& native() {
  static StandIn& instance = *new StandIn("native", dispose<native, true>, dispose<native, false>);
  return instance;
}

StandIn& other() {
  static StandIn& instance = *new StandIn("other", dispose<other, true>, dispose<other, false>);
  return instance;
}

CUDAAllocator& allocator_at(std::uintptr_t address) {
  return address ? *reinterpret_cast<CUDAAllocator*>(address) : native();
}

std::vector<c10::DataPtr>& held() {
  static auto& instance = *new std::vector<c10::DataPtr>;
  return instance;
}

void install_in_torch(CUDAAllocator* chosen) {
  allocator.store(chosen);
  c10::SetAllocator(c10::kCUDA, chosen, 255);
}

CUDAAllocator* torchs() {
  static CUDAAllocator* const before_all = allocator.load();
  return before_all;
}

}  // namespace

// `address`: of the allocator to call; 0 for the stand-in.
EXPORT std::uintptr_t standin_address() {
  return reinterpret_cast<std::uintptr_t>(static_cast<CUDAAllocator*>(&native()));
}
EXPORT std::uintptr_t standin_other() {
  return reinterpret_cast<std::uintptr_t>(static_cast<CUDAAllocator*>(&other()));
}
EXPORT std::uintptr_t standin_installed() {
  return reinterpret_cast<std::uintptr_t>(allocator.load());
}
EXPORT const char* standin_call_all(std::uintptr_t address) {
  static std::string told;
  try {
    told = call_all(allocator_at(address), native().raw_deleter());
  } catch (const std::exception& error) {
    told = error.what();
  }
  return told.c_str();
}
EXPORT const char* standin_log() {
  static std::string taken;
  taken = native().take_log();
  return taken.c_str();
}
EXPORT void standin_takes_python(int on) { settings.takes_python = on; }
EXPORT void standin_fails(int count, int after) {
  settings.fails = count;
  settings.after = after;
}
EXPORT void standin_during(void (*now)()) { settings.during = now; }
EXPORT void standin_booked(void (*now)()) { settings.booked = now; }
EXPORT void standin_lingers(int reads) { settings.lingers = reads; }
// In place of what torch has; and torch's own again.
EXPORT void standin_install(std::uintptr_t address) {
  torchs();
  install_in_torch(&allocator_at(address));
}
EXPORT void standin_uninstall() { install_in_torch(torchs()); }
EXPORT void standin_enable(std::uintptr_t address, int on) { allocator_at(address).enable(on); }
EXPORT long standin_frees() { return native().memory().frees(); }
EXPORT long standin_other_frees() { return other().memory().frees(); }
EXPORT long standin_strays() { return native().memory().strays() + other().memory().strays(); }
EXPORT long standin_live() { return native().memory().stats().allocated_bytes[0].current; }
EXPORT long standin_other_live() { return other().memory().stats().allocated_bytes[0].current; }
EXPORT long standin_peak() { return native().memory().stats().allocated_bytes[0].peak; }
EXPORT long standin_num_ooms(std::uintptr_t address) {
  return allocator_at(address).getDeviceStats(0).num_ooms;
}
EXPORT long standin_retries() { return native().memory().stats().num_alloc_retries; }
EXPORT void standin_reset() {
  native().memory().reset_failures();
  native().memory().reset_peak();
  for (Memory* memory : {&native().memory(), &other().memory()}) {
    memory->begin_anew();
    memory->flush();
  }
  native().take_log();
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
EXPORT void standin_drop(Count number) { held()[number].clear(); }
EXPORT void standin_drop_all() { held().clear(); }
// Without a deleter: to be freed by its address.
EXPORT std::uintptr_t standin_raw_alloc(Count bytes) {
  return reinterpret_cast<std::uintptr_t>(native().raw_alloc(bytes));
}
EXPORT void standin_empty_cache(std::uintptr_t address) { allocator_at(address).emptyCache(); }
EXPORT void standin_set_fraction(std::uintptr_t address, double fraction) {
  allocator_at(address).setMemoryFraction(fraction, 0);
}
EXPORT void standin_observe(std::uintptr_t address, void (*told)(long)) {
  allocator_at(address).attachOutOfMemoryObserver(
      [told](std::int64_t, Count bytes, Count, Count) { told(static_cast<long>(bytes)); });
}
// A MemPool with the named allocator, as torch hands it over.
EXPORT void standin_create_pool(std::uintptr_t address, std::uintptr_t allocator) {
  allocator_at(address).createOrIncrefPool(
      0, {9, 0}, std::shared_ptr<CUDAAllocator>(&allocator_at(allocator), [](auto*) {}));
}
EXPORT void standin_capture(std::uintptr_t address, int begin, long id) {
  const MempoolId_t pool{static_cast<c10::CaptureId_t>(id), 0};
  begin ? allocator_at(address).beginAllocateToPool(0, pool, [](cudaStream_t) { return true; })
        : allocator_at(address).endAllocateToPool(0, pool);
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
// As torch's _share_cuda_ does: the address goes to the allocator, and then the storage has a
// counted pointer that holds the one it had. Returns the address.
EXPORT std::uintptr_t standin_share(std::uintptr_t address, const void* tensor) {
  const c10::Storage storage = static_cast<const c10::TensorImpl*>(tensor)->unsafe_storage();
  void* const data = storage.mutable_data();
  allocator_at(address).shareIpcHandle(data);
  auto* const before = new c10::DataPtr;
  c10::DataPtr counted(
      data, before, [](void* held) { delete static_cast<c10::DataPtr*>(held); }, storage.device());
  *before = storage.set_data_ptr(std::move(counted));
  return reinterpret_cast<std::uintptr_t>(data);
}
// Where the content of a tensor lies, without telling anybody; 0 of one that is evicted.
EXPORT std::uintptr_t standin_place(const void* tensor) {
  auto* storage =
      static_cast<const c10::TensorImpl*>(tensor)->unsafe_storage().unsafeGetStorageImpl();
  return reinterpret_cast<std::uintptr_t>(storage->_mutable_data_ptr_no_checks().get());
}
