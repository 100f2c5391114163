// A CUDA driver without a device, for tests: the calls that a memory pool makes, with their rules.
//
// The driver enforces those rules of cuda.h whose violation would break a real program. So a pool
// that violates one fails its tests on a machine without a GPU. All state is in one World, under one
// lock, and each test starts with a fresh World. The calls are in devices.cpp, memory.cpp,
// streams.cpp and scorer.cpp; clocks.cpp simulates time, and world.cpp answers the tests' questions.
//
// Torch and CuPy need far more calls than this driver has.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "dtr_alloc/pool/csrc/cuda/driver.h"

namespace fake_cuda {

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

// What the driver answers, beside the codes that the pool knows (dtr_alloc/pool/csrc/cuda/driver.h).
using dtr::cuda::kNotReady;
using dtr::cuda::kOutOfMemory;
constexpr Result kInvalidValue = 1;
constexpr Result kNotInitialized = 3;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kInvalidHandle = 400;
constexpr Result kIllegalAddress = 700;
constexpr Result kNotSupported = 801;

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

// Clocks of a world in which time passes, all in nanoseconds.
struct Clocks {
  std::int64_t host = 0;                           // Now.
  std::int64_t driver = 0;                         // Of the host, in calls.
  std::int64_t waited = 0;                         // Of the host, for the device.
  std::int64_t busy = 0;                           // Of the device: some stream runs.
  std::int64_t idle = 0;                           // Of the device, between two pieces of work.
  std::int64_t stalled = 0;                        // Of the default stream, for others.
  std::int64_t end = 0;                            // Of the last piece of work so far.
  std::map<std::uintptr_t, std::int64_t> streams;  // When each has run all that it was given.
};

std::map<std::string, std::int64_t> assumed_latencies();  // Of calls, in nanoseconds.

struct Injection {
  long after;
  Result code;
};

struct World {
  bool initialized = false;
  bool manual = false;
  double milliseconds = 0;    // The device's clock: it stands still but for events.
  double event_takes = 0.25;  // Milliseconds that pass before an event is complete.
  bool aside = false;         // Calls are the test's own: not counted, and none fails.
  bool timed = false;
  bool bare = false;  // Pages have no memory: a process has 65,530 mappings, a device more pages.
  Clocks clocks;
  std::vector<Running> running;  // One within the other, as an operator has others run again.
  std::map<std::string, std::int64_t> latencies = assumed_latencies();
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

extern std::recursive_mutex mutex;
extern World world;
extern thread_local std::vector<Context> current;

inline void* pointer(Pointer address) { return reinterpret_cast<void*>(address); }

// What every call does first: it is counted, takes its time, and may be turned down.
Result enter(const char* name);

// Memory.
bool accessible(Pointer address, std::size_t size);
bool page_locked(const void* begin, std::size_t size);  // Memory of the host.
void forget_memory();                                   // Gives all of it back to the system.

// Streams.
Result submit(StreamHandle stream, Operation operation);
bool step(Queue& queue);  // False where nothing could run.
void run_out(Queue& queue);
std::vector<Queue*> queues();

// Time.
void wait_until(std::int64_t time);
std::int64_t time_on_the_bus(std::size_t bytes);                   // Of a copy from or to the host.
void schedule(std::uintptr_t stream, const Operation& operation);  // Gives it its place in time.
void launch(StreamHandle stream);  // The kernel of the innermost operator, once.

// The scorer's kernel.
void least_of_tiles(const Launch& launch);

}  // namespace fake_cuda

#define ENTER(name)                            \
  const std::lock_guard lock(mutex);           \
  if (const Result r = enter(#name)) return r; \
  if (!world.aside && world.dropped.contains(#name)) return 0

#define INSIST(condition, code) \
  if (!(condition)) return code

#define FAKE extern "C" __attribute__((visibility("default")))
