// Imitates a CUDA driver, for tests without a GPU: the calls of a memory pool, and the rules of
// cuda.h that a real program must keep, so that a pool that violates one fails its tests. All state
// is in one World, under one lock, and each test starts with a fresh one. Torch and CuPy cannot run
// on it: they need far more calls.

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

// Results of driver calls. The pool knows the first two (dtr_alloc/pool/csrc/cuda/driver.h).
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
  std::uint64_t recorded = 0;  // 1 if recorded: each recording has a new EventState.
  std::uint64_t complete = 0;
  double milliseconds = 0;  // When it was complete, if not World::timed.
  std::int64_t at = 0;      // When it is complete, if World::timed, in nanoseconds.
  bool stamps = false;      // Created to measure time.
};

// An operator of torch that is running. Its kernel is launched when the operator ends, or just
// before a second timing event (stamp) is recorded in it, because that must measure the kernel.
struct Running {
  std::int64_t takes;
  int stamps = 0;
};

struct Kernel {
  Module module;
  std::string name;
  std::vector<std::size_t> parameters;  // The parameters' sizes.
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
  std::int64_t takes = 0;  // How many nanoseconds it takes in its stream.
};

using Queue = std::deque<Operation>;

// The clocks and times that are simulated if World::timed, all in nanoseconds.
struct Clocks {
  std::int64_t host = 0;                           // What time it is on the host.
  std::int64_t driver = 0;                         // How long the host was in driver calls.
  std::int64_t waited = 0;                         // How long the host waited for the device.
  std::int64_t busy = 0;                           // How long some stream of the device ran work.
  std::int64_t idle = 0;                           // How long all streams were idle between work.
  std::int64_t stalled = 0;                        // How long stream 0 waited for other streams.
  std::int64_t end = 0;                            // When all work given so far is done.
  std::map<std::uintptr_t, std::int64_t> streams;  // When each has done its work.
};

std::map<std::string, std::int64_t> assumed_latencies();  // Of driver calls, in nanoseconds.

struct Injection {
  long after;
  Result code;
};

struct World {
  bool initialized = false;
  bool manual = false;
  double milliseconds = 0;    // The device's clock, if not timed; only events advance it.
  double event_takes = 0.25;  // By how many milliseconds an event advances it.
  bool aside = false;         // The test itself makes calls: they are not counted, and none fails.
  bool timed = false;
  bool bare = false;  // Pages get no memory, since a process may map only 65,530 of them.
  Clocks clocks;
  std::vector<Running> running;  // A stack: an operator may wait for reruns of others.
  std::map<std::string, std::int64_t> latencies = assumed_latencies();
  std::set<std::string> drains;  // Calls that wait until all work is done.
  std::set<int> attributes = {dtr::cuda::kVirtualMemoryManagement, dtr::cuda::kPosixHandles,
                              dtr::cuda::kRdmaPages};  // What the devices support.
  std::size_t capacity[kDevices] = {std::size_t{1} << 32, std::size_t{1} << 32};
  std::size_t used[kDevices] = {};
  std::size_t others[kDevices] = {};  // Bytes that other processes hold.
  int contexts[kDevices] = {};
  std::map<Pointer, std::size_t> reservations;
  std::map<Pointer, Mapping> mappings;
  std::map<Physical, Allocation> allocations;
  std::set<std::size_t> slots;  // Physical pages in use, by number.
  std::size_t first_slot = 0;   // All lower numbers are in use.
  Physical next_physical = 1;
  std::map<Event, std::shared_ptr<EventState>> events;
  std::map<std::uintptr_t, Queue> streams = {{0, {}}};
  std::vector<Queue> destroyed;  // Of destroyed streams; their work goes on.
  std::map<Pointer, std::size_t> registered;
  std::map<Module, std::string> modules;
  std::map<Function, Kernel> kernels;
  std::map<std::string, long> calls;
  std::map<std::string, Injection> injections;
  std::set<std::string> dropped;
  void (*host_function)() = nullptr;  // Work that the next host call waits for.
  std::vector<std::string> faults;
};

extern std::recursive_mutex mutex;
extern World world;
extern thread_local std::vector<Context> current;

inline void* pointer(Pointer address) { return reinterpret_cast<void*>(address); }

Result enter(const char* name);  // Begins a call: counts it, takes its time, may return an error.

bool accessible(Pointer address, std::size_t size);
bool page_locked(const void* begin, std::size_t size);  // For memory of the host.
void forget_memory();                                   // Returns all memory to the system.

Result submit(StreamHandle stream, Operation operation);
bool step(Queue& queue);  // Runs one operation; false if none can run.
void run_out(Queue& queue);
std::vector<Queue*> queues();

void wait_until(std::int64_t time);
std::int64_t time_on_the_bus(std::size_t bytes);                   // Of a copy from or to the host.
void schedule(std::uintptr_t stream, const Operation& operation);  // Sets when the operation runs.
void launch(StreamHandle stream);  // Launches the innermost operator's kernel, once.

// Does what the scorer's kernel does.
void least_of_tiles(const Launch& launch);

}  // namespace fake_cuda

#define ENTER(name)                            \
  const std::lock_guard lock(mutex);           \
  if (const Result r = enter(#name)) return r; \
  if (!world.aside && world.dropped.contains(#name)) return 0

#define INSIST(condition, code) \
  if (!(condition)) return code

#define FAKE extern "C" __attribute__((visibility("default")))
