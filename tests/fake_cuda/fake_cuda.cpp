// A CUDA driver without a device, for tests: the calls that a memory pool makes, with their rules.
//
// Device memory is one sparse memfd; a physical allocation is a piece of it, and cuMemMap maps the
// piece at an address, so that a page really moves, aliases, and faults where there is none. The
// rules of cuda.h are kept where breaking them would break a real program: whole mappings only,
// granularity, no overlap, access given anew after each mapping, memory freed once it has neither
// handle nor mapping. Streams are queues of operations. By default each runs when it is given; in
// manual mode it waits until a test steps its stream, so that a missing wait shows every time and
// not by chance. An operation that touches memory that is gone, or reads what it should not, is a
// fault: counted and described. A host call that waits runs exactly the operations it must.
//
// It runs one kernel, the scorer's, as a function here: its PTX is read for what parameters it
// takes. The device sees memory of the host at other addresses than the host does.
//
// Time passes only where a test says so (fakecuda_timed). Then every call takes its latency of the
// host's clock, streams have clocks of their own and run beside each other, and work takes as long
// as it is said to. Bytes still change when the work is given, so no test waits for real.
//
// The names from fakecuda_ on are for tests: turn a call down, drop one without a word, count.
// It is no driver for torch or CuPy, which need far more of it.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtr_alloc/csrc/cuda/driver.h"
#include "runtime/csrc/policy/score.h"

namespace {

using dtr::cuda::AccessDesc;
using dtr::cuda::AllocationProp;
using dtr::cuda::Context;
using dtr::cuda::Event;
using dtr::cuda::Function;
using dtr::cuda::Module;
using dtr::cuda::Physical;
using dtr::cuda::Pointer;
using dtr::cuda::Result;
using dtr::cuda::StreamHandle;
using Capture = int;

constexpr std::size_t kPage = 2u << 20;
constexpr int kDevices = 2;
constexpr std::size_t kSlots = std::size_t{1} << 17;  // 256 GiB, of which only what is used exists.
constexpr Result kCaptureUnsupported = 900;
constexpr Result kInvalidImage = 200;
constexpr Result kNotFound = 500;
constexpr Result kAlreadyRegistered = 712;
constexpr Result kNotRegistered = 713;
constexpr Pointer kSeenAt = Pointer{1} << 62;  // From the host's address to the device's.

struct Allocation {
  int device;
  std::size_t size;
  std::size_t slot;
  int handles;
  int mappings;
  bool rdma;
  bool exportable;
};

struct Mapping {
  std::size_t size;
  Physical physical;
  bool accessible;
};

struct EventState {
  std::uint64_t recorded = 0;  // Versions: each recording is one.
  std::uint64_t complete = 0;
  double milliseconds = 0;  // When it was complete.
  std::int64_t at = 0;      // The same, in a timed world: perhaps in the future.
  bool stamps = false;      // Made to tell the time.
};

// An operator of torch's while it runs: its kernel is launched by the time it ends, or before the
// second stamp in it, which is to come behind the kernel.
struct Running {
  std::int64_t takes;
  int stamps = 0;
};

struct Kernel {
  Module module;
  std::string name;
  std::vector<std::size_t> parameters;  // Their sizes.
  unsigned threads;
};

struct Launch {
  std::string name;
  unsigned blocks;
  std::vector<std::uint64_t> parameters;
};

struct Operation {
  enum Kind { kWrite, kExpect, kCopy, kRecord, kWait, kKernel, kWork } kind;
  Pointer address = 0;
  std::size_t size = 0;
  unsigned char value = 0;
  std::shared_ptr<EventState> event = nullptr;
  std::uint64_t version = 0;
  Pointer from = 0;
  Launch launch = {};
  std::int64_t takes = 0;  // Nanoseconds of its stream.
};

using Queue = std::deque<Operation>;

// What a call takes of the host, in nanoseconds. These are assumptions: nobody has measured them on
// a device yet (perf/gpu's probe does).
const std::map<std::string, std::int64_t> kLatencies = {{"cuMemCreate", 25'000},
                                                        {"cuMemRelease", 10'000},
                                                        {"cuMemMap", 8'000},
                                                        {"cuMemSetAccess", 8'000},
                                                        {"cuMemUnmap", 12'000},
                                                        {"cuEventRecord", 1'000},
                                                        {"cuEventQuery", 1'000},
                                                        {"cuStreamWaitEvent", 1'000},
                                                        {"cuEventSynchronize", 5'000},
                                                        {"cuEventCreate", 2'000},
                                                        {"cuStreamSynchronize", 5'000},
                                                        {"cuLaunchKernel", 4'000},
                                                        {"cuMemcpyDtoDAsync_v2", 3'000},
                                                        {"cuCtxPushCurrent_v2", 100},
                                                        {"cuCtxPopCurrent_v2", 100},
                                                        {"cuCtxGetCurrent", 30},
                                                        {"cuThreadExchangeStreamCaptureMode", 30}};

// Clocks of a world in which time passes, all in nanoseconds.
struct Clocks {
  std::int64_t host = 0;                           // Now.
  std::int64_t driver = 0;                         // Of the host, in calls.
  std::int64_t waited = 0;                         // Of the host, for the device.
  std::int64_t busy = 0;                           // Of the device: some stream runs.
  std::int64_t idle = 0;                           // Of the device, between two pieces of work.
  std::int64_t end = 0;                            // Of the last piece of work so far.
  std::map<std::uintptr_t, std::int64_t> streams;  // When each has run all that it was given.
};

struct Injection {
  long after;
  Result code;
};

struct World {
  bool initialized = false;
  bool manual = false;
  bool capturing = false;
  double milliseconds = 0;    // The device's clock: it stands still but for events.
  double event_takes = 0.25;  // Milliseconds that pass before an event is complete.
  bool aside = false;         // Calls are the test's own: not counted, and none fails.
  bool timed = false;
  bool bare =
      false;  // Pages have no memory: a process has 65,530 mappings, and a device more pages.
  Clocks clocks;
  std::vector<Running> running;  // One within the other, as an operator has others run again.
  std::map<std::string, std::int64_t> latencies = kLatencies;
  std::set<std::string> drains;  // Calls that wait for all work.
  std::set<int> attributes = {dtr::cuda::kVirtualMemoryManagement, dtr::cuda::kPosixHandles,
                              dtr::cuda::kRdmaPages};  // Of the devices.
  std::size_t capacity[kDevices] = {std::size_t{1} << 32, std::size_t{1} << 32};
  std::size_t used[kDevices] = {};
  std::size_t others[kDevices] = {};  // What other processes hold.
  int contexts[kDevices] = {};
  std::map<Pointer, std::size_t> reservations;
  std::map<Pointer, Mapping> mappings;
  std::map<Physical, Allocation> allocations;
  std::set<std::size_t> slots;  // In use.
  std::size_t first_slot = 0;   // None below is free.
  Physical next_physical = 1;
  std::map<Event, std::shared_ptr<EventState>> events;
  std::map<std::uintptr_t, Queue> streams = {{0, {}}};
  std::vector<Queue> destroyed;  // Their work goes on.
  std::map<Pointer, std::size_t> registered;
  std::map<Module, std::string> modules;
  std::map<Function, Kernel> kernels;
  std::map<std::string, long> calls;
  std::map<std::string, Injection> injections;
  std::set<std::string> dropped;
  std::vector<std::string> faults;
};

std::recursive_mutex mutex;
World world;
thread_local std::vector<Context> current;

int memory() {
  static const int file = [] {
    const int made = memfd_create("fake_cuda", 0);
    if (ftruncate(made, static_cast<off_t>(kSlots * kPage)) != 0) abort();
    return made;
  }();
  return file;
}

void* pointer(Pointer address) { return reinterpret_cast<void*>(address); }

void forbid(Pointer address, std::size_t size) {
  if (world.bare) return;
  mmap(pointer(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
       -1, 0);
}

// Frees an allocation that has neither handle nor mapping; the next one starts with other contents.
void sweep(Physical physical) {
  const Allocation& gone = world.allocations.at(physical);
  if (gone.handles > 0 || gone.mappings > 0) return;
  fallocate(memory(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(gone.slot * kPage), static_cast<off_t>(gone.size));
  for (std::size_t i = 0; i < gone.size / kPage; i++) world.slots.erase(gone.slot + i);
  world.first_slot = std::min(world.first_slot, gone.slot);
  world.used[gone.device] -= gone.size;
  world.allocations.erase(physical);
}

// Whether the range consists of whole mappings.
bool whole_mappings(Pointer address, std::size_t size) {
  const Pointer end = address + size;
  while (address < end) {
    const auto at = world.mappings.find(address);
    if (at == world.mappings.end()) return false;
    address += at->second.size;
  }
  return address == end && size > 0;
}

bool accessible(Pointer address, std::size_t size) {
  auto at = world.mappings.upper_bound(address);
  if (at == world.mappings.begin()) return false;
  at--;
  const Pointer end = address + size;
  while (at != world.mappings.end() && at->first <= address && at->second.accessible) {
    address = at->first + at->second.size;
    if (address >= end) return true;
    at++;
  }
  return false;
}

void fault(const Operation& operation, const std::string& what) {
  world.faults.push_back((operation.kind == Operation::kWrite ? "a write of " : "a read of ") +
                         std::to_string(operation.size) + " bytes for " +
                         std::to_string(operation.value) + " " + what);
}

// All of a small range; of a large one the ends and every 16 KiB, the same places for every
// operation.
void each_byte(const Operation& operation, const std::function<bool(unsigned char*)>& visit) {
  unsigned char* bytes = static_cast<unsigned char*>(pointer(operation.address));
  const std::size_t size = operation.size;
  constexpr std::size_t kEnd = 512;
  for (std::size_t i = 0; i < size; i++) {
    if (size > 16384 && i == kEnd) {
      i = (operation.address + i + 16383) / 16384 * 16384 - operation.address;
      for (; i < size - kEnd; i += 16384) {
        if (!visit(bytes + i)) return;
      }
      i = size - kEnd;
    }
    if (!visit(bytes + i)) return;
  }
}

// What kernels/_kernels.py says of least_of_tiles. The device's rounding is not the host's.
void least_of_tiles(const Launch& launch) {
  const std::vector<std::uint64_t>& given = launch.parameters;
  const auto count = static_cast<std::int64_t>(given[9]);
  constexpr std::int64_t kTile = 256;
  const auto fail = [&](const std::string& what) {
    world.faults.push_back(launch.name + " " + what);
  };
  const auto host = [&](std::size_t at, std::size_t size) -> char* {
    const Pointer address = given[at] - kSeenAt;
    auto range = world.registered.upper_bound(address);
    if (range == world.registered.begin()) return nullptr;
    range--;
    return address + size <= range->first + range->second ? static_cast<char*>(pointer(address))
                                                          : nullptr;
  };
  char* columns[9];
  for (std::size_t at = 0; at < 9; at++) {
    const std::size_t width = at < 6 || at == 8 ? 8 : at == 6 ? 4 : 1;
    const std::size_t rows = at == 8 ? launch.blocks : static_cast<std::size_t>(count);
    columns[at] = host(at, rows * width);
    if (columns[at] == nullptr) return fail("touched memory of the host that it does not see");
    if (given[at] % 16 != 0) return fail("was given a column that its wide loads cannot read");
  }
  if (count % 16 != 0) return fail("was given a number of rows that is not one of 16");
  const auto whole = [&](std::size_t column, std::int64_t row) {
    return reinterpret_cast<std::int64_t*>(columns[column])[row];
  };
  const auto real = [&](std::size_t at) {
    double value;
    std::memcpy(&value, &given[at], sizeof value);
    return value;
  };
  const bool general = launch.name == "least_of_tiles_general";
  dtr::Heuristic h;
  std::size_t next = 12;
  dtr::for_each_parameter([&](const dtr::Parameter& parameter, auto member) {
    if constexpr (std::is_same_v<decltype(member), double dtr::Heuristic::*>) {
      const double value = real(next++);
      if (parameter.role == dtr::ParameterRole::kExponent || general) {
        h.*member = parameter.role == dtr::ParameterRole::kFactor ? std::exp2(value) : value;
      }
    }
  });
  if (given[next] != 0 || given[next + 1] != 0) return fail("was given scratch memory");
  h.epsilon = dtr::Nanos{given[11]};
  for (std::int64_t tile = 0; tile < launch.blocks; tile++) {
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t row = tile * kTile; row < std::min(count, (tile + 1) * kTile); row++) {
      if (columns[7][row] == 0) continue;
      const dtr::Terms terms{.cost = dtr::Nanos{whole(4, row) + whole(5, row)},
                             .size = whole(0, row),
                             .staleness = dtr::Nanos{given[10]} - dtr::Nanos{whole(3, row)},
                             .recomputes = reinterpret_cast<std::int32_t*>(columns[6])[row],
                             .free_neighbours = whole(1, row) + whole(2, row)};
      const double rounding = general ? 1 + 4e-13 * static_cast<double>(row * 7919 % 5 - 2) : 1;
      least = std::min(least, dtr::score(h, terms) * rounding);
    }
    reinterpret_cast<double*>(columns[8])[tile] = least;
  }
}

void perform(const Operation& operation) {
  switch (operation.kind) {
    case Operation::kRecord:
      operation.event->complete = std::max(operation.event->complete, operation.version);
      operation.event->milliseconds = world.milliseconds += world.event_takes;
      return;
    case Operation::kWait:
    case Operation::kWork:
      return;
    case Operation::kKernel:
      return least_of_tiles(operation.launch);
    case Operation::kCopy:
      if (!accessible(operation.address, operation.size) ||
          !accessible(operation.from, operation.size)) {
        return fault(operation, "touched memory that is not there");
      }
      std::memmove(pointer(operation.address), pointer(operation.from), operation.size);
      return;
    case Operation::kWrite:
    case Operation::kExpect:
      if (!accessible(operation.address, operation.size)) {
        return fault(operation, "touched memory that is not there");
      }
      each_byte(operation, [&](unsigned char* byte) {
        if (operation.kind == Operation::kWrite) {
          *byte = operation.value;
        } else if (*byte != operation.value) {
          fault(operation, "found " + std::to_string(*byte));
          return false;
        }
        return true;
      });
  }
}

bool blocked(const Queue& queue) {
  const Operation& first = queue.front();
  return first.kind == Operation::kWait && first.event->complete < first.version;
}

bool step(Queue& queue) {
  if (queue.empty() || blocked(queue)) return false;
  const Operation operation = queue.front();
  queue.pop_front();
  perform(operation);
  return true;
}

std::vector<Queue*> queues() {
  std::vector<Queue*> all;
  for (auto& [name, queue] : world.streams) all.push_back(&queue);
  for (Queue& queue : world.destroyed) all.push_back(&queue);
  return all;
}

// Runs what must run before an event is complete, and no more.
void reach(const std::shared_ptr<EventState>& event, std::uint64_t version) {
  for (Queue* queue : queues()) {
    const auto holds = [&](const Operation& operation) {
      return operation.kind == Operation::kRecord && operation.event == event &&
             operation.version == version;
    };
    while (event->complete < version && std::any_of(queue->begin(), queue->end(), holds)) {
      if (blocked(*queue)) reach(queue->front().event, queue->front().version);
      step(*queue);
    }
  }
}

void run_out(Queue& queue) {
  while (!queue.empty()) {
    if (blocked(queue)) reach(queue.front().event, queue.front().version);
    step(queue);
  }
}

void wait_until(std::int64_t time) {
  Clocks& clocks = world.clocks;
  clocks.waited += std::max<std::int64_t>(time - clocks.host, 0);
  clocks.host = std::max(clocks.host, time);
}

// Gives the operation its place in time.
void schedule(std::uintptr_t stream, const Operation& operation) {
  Clocks& clocks = world.clocks;
  std::int64_t& end = clocks.streams[stream];
  if (operation.kind == Operation::kWait) {
    end = std::max(end, operation.event->at);
    return;
  }
  const std::int64_t begin = std::max(end, clocks.host);
  if (operation.kind == Operation::kRecord) {
    operation.event->at = begin;
    return;
  }
  end = begin + operation.takes;
  if (operation.takes == 0) return;
  if (clocks.busy > 0) clocks.idle += std::max<std::int64_t>(begin - clocks.end, 0);
  clocks.busy += std::max<std::int64_t>(end - std::max(begin, clocks.end), 0);
  clocks.end = std::max(clocks.end, end);
}

Result submit(StreamHandle stream, Operation operation) {
  const auto at = world.streams.find(reinterpret_cast<std::uintptr_t>(stream));
  if (at == world.streams.end()) return dtr::cuda::kInvalidHandle;
  if (world.timed) schedule(at->first, operation);
  at->second.push_back(std::move(operation));
  if (!world.manual) run_out(at->second);
  return 0;
}

// The kernel of the innermost operator, once.
void launch(StreamHandle stream) {
  const std::int64_t takes = std::exchange(world.running.back().takes, 0);
  if (takes > 0) submit(stream, {.kind = Operation::kWork, .takes = takes});
}

Result enter(const char* name) {
  if (world.aside) return 0;
  world.calls[name]++;
  if (world.timed) {
    const auto latency = world.latencies.find(name);
    const std::int64_t takes = latency == world.latencies.end() ? 0 : latency->second;
    if (world.drains.contains(name)) wait_until(world.clocks.end);
    world.clocks.host += takes;
    world.clocks.driver += takes;
  }
  const auto injected = world.injections.find(name);
  if (injected != world.injections.end() && injected->second.after-- == 0) {
    const Result code = injected->second.code;
    world.injections.erase(injected);
    return code;
  }
  const std::string call = name;
  if (call == "cuInit" || call == "cuDriverGetVersion") return 0;
  return world.initialized ? 0 : dtr::cuda::kNotInitialized;
}

}  // namespace

#define ENTER(name)                            \
  const std::lock_guard lock(mutex);           \
  if (const Result r = enter(#name)) return r; \
  if (!world.aside && world.dropped.contains(#name)) return 0

#define INSIST(condition, code) \
  if (!(condition)) return dtr::cuda::code

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE Result cuInit(unsigned flags) {
  ENTER(cuInit);
  INSIST(flags == 0, kInvalidValue);
  world.initialized = true;
  return 0;
}

FAKE Result cuDriverGetVersion(int* version) {
  ENTER(cuDriverGetVersion);
  *version = 13000;
  return 0;
}

FAKE Result cuGetErrorName(Result code, const char** name) {
  static const std::map<Result, const char*> names = {{0, "CUDA_SUCCESS"},
                                                      {1, "CUDA_ERROR_INVALID_VALUE"},
                                                      {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                      {3, "CUDA_ERROR_NOT_INITIALIZED"},
                                                      {100, "CUDA_ERROR_NO_DEVICE"},
                                                      {101, "CUDA_ERROR_INVALID_DEVICE"},
                                                      {200, "CUDA_ERROR_INVALID_IMAGE"},
                                                      {201, "CUDA_ERROR_INVALID_CONTEXT"},
                                                      {400, "CUDA_ERROR_INVALID_HANDLE"},
                                                      {600, "CUDA_ERROR_NOT_READY"},
                                                      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                                      {801, "CUDA_ERROR_NOT_SUPPORTED"}};
  const auto at = names.find(code);
  *name = at == names.end() ? nullptr : at->second;
  return at == names.end() ? dtr::cuda::kInvalidValue : 0;
}

FAKE Result cuGetErrorString(Result code, const char** text) {
  *text = code == dtr::cuda::kOutOfMemory ? "out of memory" : nullptr;
  return *text == nullptr ? dtr::cuda::kInvalidValue : 0;
}

FAKE Result cuDeviceGetCount(int* count) {
  ENTER(cuDeviceGetCount);
  *count = kDevices;
  return 0;
}

FAKE Result cuDeviceGet(int* device, int ordinal) {
  ENTER(cuDeviceGet);
  INSIST(ordinal >= 0 && ordinal < kDevices, kInvalidDevice);
  *device = ordinal;
  return 0;
}

FAKE Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER(cuDeviceGetAttribute);
  INSIST(device >= 0 && device < kDevices, kInvalidDevice);
  *value = world.attributes.contains(attribute);
  return 0;
}

FAKE Result cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  ENTER(cuDeviceTotalMem_v2);
  INSIST(device >= 0 && device < kDevices, kInvalidDevice);
  *bytes = world.capacity[device];
  return 0;
}

FAKE Result cuDevicePrimaryCtxRetain(Context* context, int device) {
  ENTER(cuDevicePrimaryCtxRetain);
  INSIST(device >= 0 && device < kDevices, kInvalidDevice);
  world.contexts[device]++;
  *context = reinterpret_cast<Context>(static_cast<std::uintptr_t>(device + 1));
  return 0;
}

FAKE Result cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER(cuDevicePrimaryCtxRelease_v2);
  INSIST(device >= 0 && device < kDevices && world.contexts[device] > 0, kInvalidContext);
  world.contexts[device]--;
  return 0;
}

FAKE Result cuCtxPushCurrent_v2(Context context) {
  ENTER(cuCtxPushCurrent_v2);
  INSIST(context != nullptr, kInvalidContext);
  current.push_back(context);
  return 0;
}

FAKE Result cuCtxPopCurrent_v2(Context* context) {
  ENTER(cuCtxPopCurrent_v2);
  INSIST(!current.empty(), kInvalidContext);
  *context = current.back();
  current.pop_back();
  return 0;
}

FAKE Result cuCtxGetCurrent(Context* context) {
  ENTER(cuCtxGetCurrent);
  *context = current.empty() ? nullptr : current.back();
  return 0;
}

FAKE Result cuCtxSetCurrent(Context context) {
  ENTER(cuCtxSetCurrent);
  current.assign(1, context);
  return 0;
}

FAKE Result cuCtxSynchronize() {
  ENTER(cuCtxSynchronize);
  if (world.capturing) return kCaptureUnsupported;
  for (Queue* queue : queues()) run_out(*queue);
  return 0;
}

FAKE Result cuThreadExchangeStreamCaptureMode(Capture* mode) {
  ENTER(cuThreadExchangeStreamCaptureMode);
  thread_local Capture own = 0;
  INSIST(*mode >= 0 && *mode <= 2, kInvalidValue);
  std::swap(*mode, own);
  return 0;
}

FAKE Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  ENTER(cuMemGetInfo_v2);
  INSIST(!current.empty(), kInvalidContext);
  const std::size_t device = reinterpret_cast<std::uintptr_t>(current.back()) - 1;
  *total = world.capacity[device];
  *free = *total - std::min(*total, world.used[device] + world.others[device]);
  return 0;
}

FAKE Result cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProp* prop, int) {
  ENTER(cuMemGetAllocationGranularity);
  INSIST(prop->type == dtr::cuda::kMemoryPinned, kInvalidValue);
  *bytes = kPage;
  return 0;
}

FAKE Result cuMemAddressReserve(Pointer* address, std::size_t size, std::size_t alignment, Pointer,
                                unsigned long long flags) {
  ENTER(cuMemAddressReserve);
  INSIST(size > 0 && size % kPage == 0 && flags == 0, kInvalidValue);
  INSIST((alignment & (alignment - 1)) == 0, kInvalidValue);
  const std::size_t unit = std::max(alignment, kPage);
  void* range =
      mmap(nullptr, size + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  INSIST(range != MAP_FAILED, kOutOfMemory);
  const Pointer begin = reinterpret_cast<Pointer>(range);
  *address = (begin + unit - 1) / unit * unit;
  if (*address > begin) munmap(range, *address - begin);
  munmap(pointer(*address + size), begin + unit - *address);
  world.reservations[*address] = size;
  return 0;
}

FAKE Result cuMemAddressFree(Pointer address, std::size_t size) {
  ENTER(cuMemAddressFree);
  const auto at = world.reservations.find(address);
  INSIST(at != world.reservations.end() && at->second == size, kInvalidValue);
  const auto inside = world.mappings.lower_bound(address);
  INSIST(inside == world.mappings.end() || inside->first >= address + size, kInvalidValue);
  munmap(pointer(address), size);
  world.reservations.erase(at);
  return 0;
}

FAKE Result cuMemCreate(Physical* physical, std::size_t size, const AllocationProp* prop,
                        unsigned long long flags) {
  ENTER(cuMemCreate);
  INSIST(prop->type == dtr::cuda::kMemoryPinned && flags == 0, kInvalidValue);
  INSIST(prop->location.type == dtr::cuda::kLocationDevice, kInvalidValue);
  const int device = prop->location.id;
  INSIST(device >= 0 && device < kDevices, kInvalidDevice);
  INSIST(size > 0 && size % kPage == 0, kInvalidValue);
  INSIST(world.used[device] + world.others[device] + size <= world.capacity[device], kOutOfMemory);
  const bool rdma = prop->gpu_direct_rdma_capable != 0;
  const bool exportable = prop->requested_handle_types == dtr::cuda::kHandlePosix;
  INSIST(exportable || prop->requested_handle_types == 0, kInvalidValue);
  INSIST(!rdma || world.attributes.contains(dtr::cuda::kRdmaPages), kNotSupported);
  INSIST(!exportable || world.attributes.contains(dtr::cuda::kPosixHandles), kNotSupported);
  const std::size_t count = size / kPage;
  std::size_t slot = world.first_slot;
  for (std::size_t have = 0; have < count; slot++) {
    INSIST(slot < kSlots, kOutOfMemory);
    have = world.slots.contains(slot) ? 0 : have + 1;
  }
  slot -= count;
  if (slot == world.first_slot) world.first_slot = slot + count;
  for (std::size_t i = 0; i < count; i++) world.slots.insert(slot + i);
  world.used[device] += size;
  *physical = world.next_physical++;
  world.allocations[*physical] = {device, size, slot, 1, 0, rdma, exportable};
  return 0;
}

FAKE Result cuMemRetainAllocationHandle(Physical* physical, void* address) {
  ENTER(cuMemRetainAllocationHandle);
  const auto at = world.mappings.find(reinterpret_cast<Pointer>(address));
  INSIST(at != world.mappings.end(), kInvalidValue);
  *physical = at->second.physical;
  world.allocations.at(*physical).handles++;
  return 0;
}

FAKE Result cuMemRelease(Physical physical) {
  ENTER(cuMemRelease);
  const auto at = world.allocations.find(physical);
  INSIST(at != world.allocations.end() && at->second.handles > 0, kInvalidValue);
  at->second.handles--;
  sweep(physical);
  return 0;
}

FAKE Result cuMemMap(Pointer address, std::size_t size, std::size_t offset, Physical physical,
                     unsigned long long flags) {
  ENTER(cuMemMap);
  INSIST(offset == 0 && flags == 0 && address % kPage == 0, kInvalidValue);
  const auto at = world.allocations.find(physical);
  INSIST(at != world.allocations.end() && at->second.handles > 0, kInvalidValue);
  INSIST(size == at->second.size, kInvalidValue);
  auto range = world.reservations.upper_bound(address);
  INSIST(range != world.reservations.begin(), kInvalidValue);
  range--;
  INSIST(address + size <= range->first + range->second, kInvalidValue);
  auto next = world.mappings.lower_bound(address);
  INSIST(next == world.mappings.end() || next->first >= address + size, kInvalidValue);
  if (next != world.mappings.begin()) {
    next--;
    INSIST(next->first + next->second.size <= address, kInvalidValue);
  }
  if (!world.bare) {
    mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory(),
         static_cast<off_t>(at->second.slot * kPage));
  }
  world.mappings[address] = {size, physical, false};
  at->second.mappings++;
  return 0;
}

FAKE Result cuMemUnmap(Pointer address, std::size_t size) {
  ENTER(cuMemUnmap);
  INSIST(whole_mappings(address, size), kInvalidValue);
  forbid(address, size);
  for (const Pointer end = address + size; address < end;) {
    const auto at = world.mappings.find(address);
    const Mapping gone = at->second;
    world.mappings.erase(at);
    world.allocations.at(gone.physical).mappings--;
    sweep(gone.physical);
    address += gone.size;
  }
  return 0;
}

FAKE Result cuMemSetAccess(Pointer address, std::size_t size, const AccessDesc* access,
                           std::size_t count) {
  ENTER(cuMemSetAccess);
  INSIST(count == 1 && access->flags == dtr::cuda::kAccessReadWrite, kInvalidValue);
  INSIST(whole_mappings(address, size), kInvalidValue);
  if (!world.bare) mprotect(pointer(address), size, PROT_READ | PROT_WRITE);
  for (const Pointer end = address + size; address < end;) {
    Mapping& mapping = world.mappings.at(address);
    mapping.accessible = true;
    address += mapping.size;
  }
  return 0;
}

FAKE Result cuStreamCreate(StreamHandle* stream, unsigned) {
  ENTER(cuStreamCreate);
  INSIST(!current.empty(), kInvalidContext);
  std::uintptr_t name = 0x1000;  // The lowest that is free: names are soon used again.
  while (world.streams.contains(name)) name += 0x10;
  world.streams[name];
  *stream = reinterpret_cast<StreamHandle>(name);
  return 0;
}

FAKE Result cuStreamCreateWithPriority(StreamHandle* stream, unsigned flags, int) {
  ENTER(cuStreamCreateWithPriority);
  INSIST(flags == dtr::cuda::kStreamNonBlocking, kInvalidValue);
  return cuStreamCreate(stream, flags);
}

FAKE Result cuStreamDestroy_v2(StreamHandle stream) {
  ENTER(cuStreamDestroy_v2);
  const auto at = world.streams.find(reinterpret_cast<std::uintptr_t>(stream));
  INSIST(stream != nullptr && at != world.streams.end(), kInvalidHandle);
  if (!at->second.empty()) world.destroyed.push_back(std::move(at->second));
  world.streams.erase(at);
  return 0;
}

FAKE Result cuStreamQuery(StreamHandle stream) {
  ENTER(cuStreamQuery);
  const auto at = world.streams.find(reinterpret_cast<std::uintptr_t>(stream));
  INSIST(at != world.streams.end(), kInvalidHandle);
  if (world.timed && world.clocks.streams[at->first] > world.clocks.host)
    return dtr::cuda::kNotReady;
  return at->second.empty() ? 0 : dtr::cuda::kNotReady;
}

FAKE Result cuStreamSynchronize(StreamHandle stream) {
  ENTER(cuStreamSynchronize);
  if (world.capturing) return kCaptureUnsupported;
  const auto at = world.streams.find(reinterpret_cast<std::uintptr_t>(stream));
  INSIST(at != world.streams.end(), kInvalidHandle);
  if (world.timed) wait_until(world.clocks.streams[at->first]);
  run_out(at->second);
  return 0;
}

FAKE Result cuStreamWaitEvent(StreamHandle stream, Event event, unsigned) {
  ENTER(cuStreamWaitEvent);
  if (world.capturing) return kCaptureUnsupported;
  const auto at = world.events.find(event);
  INSIST(at != world.events.end(), kInvalidHandle);
  return submit(stream,
                {.kind = Operation::kWait, .event = at->second, .version = at->second->recorded});
}

FAKE Result cuEventCreate(Event* event, unsigned flags) {
  ENTER(cuEventCreate);
  INSIST(!current.empty(), kInvalidContext);
  static std::uintptr_t next = 1;
  *event = reinterpret_cast<Event>(next++);
  world.events[*event] = std::make_shared<EventState>();
  world.events[*event]->stamps = flags == dtr::cuda::kEventDefault;
  return 0;
}

FAKE Result cuEventDestroy_v2(Event event) {
  ENTER(cuEventDestroy_v2);
  return world.events.erase(event) == 1 ? 0 : dtr::cuda::kInvalidHandle;
}

FAKE Result cuEventRecord(Event event, StreamHandle stream) {
  ENTER(cuEventRecord);
  if (world.capturing) return kCaptureUnsupported;
  const auto at = world.events.find(event);
  INSIST(at != world.events.end(), kInvalidHandle);
  INSIST(world.streams.contains(reinterpret_cast<std::uintptr_t>(stream)), kInvalidHandle);
  if (at->second->stamps && !world.running.empty() && ++world.running.back().stamps == 2) {
    launch(stream);
  }
  return submit(
      stream, {.kind = Operation::kRecord, .event = at->second, .version = ++at->second->recorded});
}

FAKE Result cuEventQuery(Event event) {
  ENTER(cuEventQuery);
  if (world.capturing) return kCaptureUnsupported;
  const auto at = world.events.find(event);
  INSIST(at != world.events.end(), kInvalidHandle);
  if (world.timed && at->second->at > world.clocks.host) return dtr::cuda::kNotReady;
  return at->second->complete >= at->second->recorded ? 0 : dtr::cuda::kNotReady;
}

FAKE Result cuEventSynchronize(Event event) {
  ENTER(cuEventSynchronize);
  if (world.capturing) return kCaptureUnsupported;
  const auto at = world.events.find(event);
  INSIST(at != world.events.end(), kInvalidHandle);
  if (world.timed) wait_until(at->second->at);
  reach(at->second, at->second->recorded);
  return 0;
}

FAKE Result cuEventElapsedTime(float* milliseconds, Event first, Event last) {
  ENTER(cuEventElapsedTime);
  const auto begin = world.events.find(first);
  const auto end = world.events.find(last);
  INSIST(begin != world.events.end() && end != world.events.end(), kInvalidHandle);
  for (const auto& event : {begin->second, end->second}) {
    INSIST(event->recorded > 0, kInvalidHandle);
    INSIST(event->complete >= event->recorded, kNotReady);
    INSIST(!world.timed || event->at <= world.clocks.host, kNotReady);
  }
  *milliseconds = static_cast<float>(
      world.timed ? static_cast<double>(end->second->at - begin->second->at) * 1e-6
                  : end->second->milliseconds - begin->second->milliseconds);
  return 0;
}

FAKE Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, std::size_t size, StreamHandle stream) {
  ENTER(cuMemcpyDtoDAsync_v2);
  return submit(stream, {.kind = Operation::kCopy, .address = to, .size = size, .from = from});
}

FAKE Result cuMemsetD8Async(Pointer address, unsigned char value, std::size_t size,
                            StreamHandle stream) {
  ENTER(cuMemsetD8Async);
  return submit(stream,
                {.kind = Operation::kWrite, .address = address, .size = size, .value = value});
}

FAKE Result cuMemcpyDtoH_v2(void* to, Pointer from, std::size_t size) {
  ENTER(cuMemcpyDtoH_v2);
  INSIST(accessible(from, size), kIllegalAddress);
  std::memcpy(to, pointer(from), size);
  return 0;
}

FAKE Result cuMemcpyHtoD_v2(Pointer to, const void* from, std::size_t size) {
  ENTER(cuMemcpyHtoD_v2);
  INSIST(accessible(to, size), kIllegalAddress);
  std::memcpy(pointer(to), from, size);
  return 0;
}

FAKE Result cuMemHostRegister_v2(void* begin, std::size_t size, unsigned flags) {
  ENTER(cuMemHostRegister_v2);
  INSIST(!current.empty(), kInvalidContext);
  INSIST(size > 0 && flags == (dtr::cuda::kHostPortable | dtr::cuda::kHostDeviceMap),
         kInvalidValue);
  const Pointer address = reinterpret_cast<Pointer>(begin);
  auto next = world.registered.lower_bound(address);
  if (next != world.registered.end() && next->first < address + size) return kAlreadyRegistered;
  if (next != world.registered.begin()) {
    next--;
    if (next->first + next->second > address) return kAlreadyRegistered;
  }
  world.registered[address] = size;
  return 0;
}

FAKE Result cuMemHostUnregister(void* begin) {
  ENTER(cuMemHostUnregister);
  INSIST(!current.empty(), kInvalidContext);
  return world.registered.erase(reinterpret_cast<Pointer>(begin)) == 1 ? 0 : kNotRegistered;
}

FAKE Result cuMemHostGetDevicePointer_v2(Pointer* seen, void* begin, unsigned flags) {
  ENTER(cuMemHostGetDevicePointer_v2);
  const Pointer address = reinterpret_cast<Pointer>(begin);
  INSIST(flags == 0 && world.registered.contains(address), kInvalidValue);
  *seen = address + kSeenAt;
  return 0;
}

FAKE Result cuModuleLoadData(Module* module, const void* image) {
  ENTER(cuModuleLoadData);
  INSIST(!current.empty(), kInvalidContext);
  const std::string text = static_cast<const char*>(image);
  const auto says = [&](const char* word) { return text.find(word) != std::string::npos; };
  if (!says(".version 8.0") || !says(".target sm_80")) return kInvalidImage;
  static std::uintptr_t next = 1;
  *module = reinterpret_cast<Module>(next++);
  world.modules[*module] = text;
  return 0;
}

FAKE Result cuModuleUnload(Module module) {
  ENTER(cuModuleUnload);
  std::erase_if(world.kernels, [&](const auto& one) { return one.second.module == module; });
  return world.modules.erase(module) == 1 ? 0 : dtr::cuda::kInvalidHandle;
}

FAKE Result cuModuleGetFunction(Function* function, Module module, const char* name) {
  ENTER(cuModuleGetFunction);
  INSIST(world.modules.contains(module), kInvalidHandle);
  const std::string& text = world.modules[module];
  const std::size_t begin = text.find(".entry " + std::string(name) + "(");
  if (begin == std::string::npos) return kNotFound;
  Kernel kernel{.module = module, .name = name, .parameters = {}, .threads = 0};
  const std::size_t end = text.find(')', begin);
  for (std::size_t at = begin; (at = text.find(".param .", at + 1)) < end;) {
    kernel.parameters.push_back(std::stoul(text.substr(at + 9)) / 8);  // .u64, .f64, .u32
  }
  kernel.threads = static_cast<unsigned>(std::stoul(text.substr(text.find(".reqntid", end) + 9)));
  static std::uintptr_t next = 1;
  *function = reinterpret_cast<Function>(next++);
  world.kernels[*function] = kernel;
  return 0;
}

FAKE Result cuLaunchKernel(Function function, unsigned blocks, unsigned y, unsigned z,
                           unsigned threads, unsigned threads_y, unsigned threads_z,
                           unsigned shared, StreamHandle stream, void** parameters, void** extra) {
  ENTER(cuLaunchKernel);
  INSIST(!current.empty(), kInvalidContext);
  const auto at = world.kernels.find(function);
  INSIST(at != world.kernels.end(), kInvalidHandle);
  INSIST(blocks > 0 && y == 1 && z == 1 && threads == at->second.threads, kInvalidValue);
  INSIST(threads_y == 1 && threads_z == 1 && shared <= 48u << 10, kInvalidValue);
  INSIST(extra == nullptr, kInvalidValue);
  Launch launch{.name = at->second.name, .blocks = blocks, .parameters = {}};
  for (const std::size_t size : at->second.parameters) {
    launch.parameters.push_back(0);
    std::memcpy(&launch.parameters.back(), *parameters++, size);
  }
  INSIST(launch.parameters.size() == 19, kInvalidValue);
  return submit(stream, {.kind = Operation::kKernel, .launch = std::move(launch)});
}

// For tests.

FAKE void fakecuda_reset() {
  const std::lock_guard lock(mutex);
  for (const auto& [address, size] : world.reservations) munmap(pointer(address), size);
  for (const auto& [physical, allocation] : world.allocations) {
    fallocate(memory(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(allocation.slot * kPage), static_cast<off_t>(allocation.size));
  }
  world = World{};
  current.clear();
}

// Call number `after` from now (0: the next) answers `code`.
FAKE void fakecuda_fail(const char* name, long after, int code) {
  const std::lock_guard lock(mutex);
  world.injections[name] = {after, code};
}

// How many injections have not come to pass.
FAKE long fakecuda_pending_failures() { return static_cast<long>(world.injections.size()); }

// From now on the call answers success and does nothing.
FAKE void fakecuda_drop(const char* name) {
  const std::lock_guard lock(mutex);
  world.dropped.insert(name);
}

FAKE void fakecuda_aside(int on) { world.aside = on != 0; }

FAKE long fakecuda_calls(const char* name) {
  const std::lock_guard lock(mutex);
  return world.calls[name];
}

// From now on time passes. Call it before any work.
FAKE void fakecuda_timed() { world.timed = true; }
FAKE void fakecuda_bare() { world.bare = true; }
FAKE void fakecuda_latency(const char* name, std::int64_t nanoseconds) {
  const std::lock_guard lock(mutex);
  world.latencies[name] = nanoseconds;
}
FAKE void fakecuda_drains(const char* name) {
  const std::lock_guard lock(mutex);
  world.drains.insert(name);
}

// The host is busy with something else.
FAKE void fakecuda_host_works(std::int64_t nanoseconds) {
  const std::lock_guard lock(mutex);
  world.clocks.host += nanoseconds;
}

// A stream is given work that takes so long.
FAKE int fakecuda_work(StreamHandle stream, std::int64_t nanoseconds) {
  const std::lock_guard lock(mutex);
  return submit(stream, {.kind = Operation::kWork, .takes = nanoseconds});
}

// An operator of torch's that keeps the host busy and then the stream (operator_work.cpp).
FAKE void fakecuda_operator_begins(std::int64_t host, std::int64_t takes) {
  const std::lock_guard lock(mutex);
  world.clocks.host += host;
  world.running.push_back({takes});
}
FAKE void fakecuda_operator_ends(StreamHandle stream) {
  const std::lock_guard lock(mutex);
  launch(stream);
  world.running.pop_back();
}

FAKE std::int64_t fakecuda_time(const char* what) {
  const std::lock_guard lock(mutex);
  const Clocks& clocks = world.clocks;
  const std::map<std::string, std::int64_t> known = {
      {"host", clocks.host}, {"driver", clocks.driver}, {"waited", clocks.waited},
      {"busy", clocks.busy}, {"idle", clocks.idle},     {"end", clocks.end}};
  const auto at = known.find(what);
  return at == known.end() ? -1 : at->second;
}

// By which the pool times its calls (dtr_alloc/csrc/cuda/driver.h).
FAKE std::int64_t dtr_alloc_clock() {
  const std::lock_guard lock(mutex);
  if (world.timed) return world.clocks.host;
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

FAKE void fakecuda_capacity(int device, std::size_t bytes) { world.capacity[device] = bytes; }
// From now on the devices lack it.
FAKE void fakecuda_lacks(int attribute) { world.attributes.erase(attribute); }
FAKE void fakecuda_others(int device, std::size_t bytes) { world.others[device] = bytes; }
FAKE long fakecuda_used(int device) { return static_cast<long>(world.used[device]); }
FAKE void fakecuda_event_takes(double milliseconds) { world.event_takes = milliseconds; }
FAKE void fakecuda_manual(int on) { world.manual = on != 0; }
FAKE void fakecuda_capture(int on) { world.capturing = on != 0; }

// Queues a check that every byte has the value.
FAKE int fakecuda_expect(Pointer address, unsigned char value, std::size_t size,
                         StreamHandle stream) {
  const std::lock_guard lock(mutex);
  return submit(stream,
                {.kind = Operation::kExpect, .address = address, .size = size, .value = value});
}

// Runs the next operation of a stream; 0 where there is none or it waits for an event.
FAKE int fakecuda_step(std::uintptr_t stream) {
  const std::lock_guard lock(mutex);
  return step(world.streams.at(stream)) ? 1 : 0;
}

FAKE long fakecuda_queued(std::uintptr_t stream) {
  const std::lock_guard lock(mutex);
  return static_cast<long>(world.streams.at(stream).size());
}

FAKE void fakecuda_finish() {
  const std::lock_guard lock(mutex);
  for (Queue* queue : queues()) run_out(*queue);
}

FAKE long fakecuda_faults() { return static_cast<long>(world.faults.size()); }
FAKE const char* fakecuda_fault(long at) { return world.faults[at].c_str(); }

FAKE long fakecuda_count(const char* what) {
  const std::lock_guard lock(mutex);
  const std::string kind = what;
  if (kind == "handles") {
    long handles = 0;
    for (const auto& [physical, allocation] : world.allocations) handles += allocation.handles;
    return handles;
  }
  for (const bool rdma : {true, false}) {
    if (kind != (rdma ? "rdma" : "exportable")) continue;
    return std::ranges::count_if(world.allocations, [&](const auto& one) {
      return rdma ? one.second.rdma : one.second.exportable;
    });
  }
  if (kind == "allocations") return static_cast<long>(world.allocations.size());
  if (kind == "mappings") return static_cast<long>(world.mappings.size());
  if (kind == "reservations") return static_cast<long>(world.reservations.size());
  if (kind == "events") return static_cast<long>(world.events.size());
  if (kind == "contexts") return world.contexts[0] + world.contexts[1];
  if (kind == "registered") return static_cast<long>(world.registered.size());
  if (kind == "modules") return static_cast<long>(world.modules.size());
  if (kind == "streams") return static_cast<long>(world.streams.size());  // With the default one.
  if (kind == "current") return static_cast<long>(current.size());
  return -1;
}
