// Declares the part of CUDA's driver API that the pool needs, and loads the driver at run time.
//
// A build against <cuda.h> and libcuda would need a machine with a toolkit or a GPU. So we write
// the prototypes down here, and open the library when the first CUDA arena is made. No compiler
// checks them, so tests/fake_cuda/declarations.cpp compares every size, value and prototype with
// <cuda.h> where there is one. This guards against two traps. <cuda.h> renames functions by macro:
// the symbol of cuEventDestroy is cuEventDestroy_v2, and the plain name is an older function.
// (Drivers before CUDA 12.8 have only the older cuEventElapsedTime, so we use it.) And <cuda.h> has
// other symbols for per-thread default streams; with ours, stream 0 is the legacy default stream.

#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "dtr_alloc/pool/csrc/arena.h"

namespace dtr::cuda {

using Result = int;                   // CUresult
using Device = int;                   // CUdevice
using Pointer = unsigned long long;   // CUdeviceptr
using Physical = unsigned long long;  // CUmemGenericAllocationHandle
using Context = struct ContextOfDriver*;
using StreamHandle = struct StreamOfDriver*;
inline StreamHandle handle(Stream stream) { return reinterpret_cast<StreamHandle>(stream); }
using Event = struct EventOfDriver*;
using Module = struct ModuleOfDriver*;
using Function = struct FunctionOfDriver*;

constexpr Result kSuccess = 0;
constexpr Result kOutOfMemory = 2;
constexpr Result kNotReady = 600;

constexpr int kMemoryPinned = 1;                // CU_MEM_ALLOCATION_TYPE_PINNED
constexpr int kLocationDevice = 1;              // CU_MEM_LOCATION_TYPE_DEVICE
constexpr int kAccessReadWrite = 3;             // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
constexpr int kGranularityMinimum = 0;          // CU_MEM_ALLOC_GRANULARITY_MINIMUM
constexpr int kCaptureRelaxed = 2;              // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr int kHandlePosix = 1;                 // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
constexpr int kVirtualMemoryManagement = 102;   // CU_DEVICE_ATTRIBUTE_..._SUPPORTED
constexpr int kPosixHandles = 103;              // ..._HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
constexpr int kRdmaPages = 110;                 // ..._GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
constexpr int kHostNumaNode = 134;              // CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
constexpr unsigned kEventDefault = 0;           // CU_EVENT_DEFAULT
constexpr unsigned kEventDisableTiming = 2;     // CU_EVENT_DISABLE_TIMING
constexpr unsigned kStreamNonBlocking = 1;      // CU_STREAM_NON_BLOCKING
constexpr unsigned kHostPortable = 1;           // CU_MEMHOSTREGISTER_PORTABLE
constexpr unsigned kHostDeviceMap = 2;          // CU_MEMHOSTREGISTER_DEVICEMAP
constexpr std::uintptr_t kStreamLegacy = 1;     // CU_STREAM_LEGACY
constexpr std::uintptr_t kStreamPerThread = 2;  // CU_STREAM_PER_THREAD

struct Location {  // CUmemLocation
  int type;
  int id;
};

struct AllocationProp {  // CUmemAllocationProp
  int type;
  int requested_handle_types;
  Location location;
  void* win32_handle_metadata;
  unsigned char compression_type;
  unsigned char gpu_direct_rdma_capable;
  unsigned short usage;
  unsigned char reserved[4];
};

struct AccessDesc {  // CUmemAccessDesc
  Location location;
  int flags;
};

// Every call: its symbol's name, and its parameters.
#define DTR_CUDA_CALLS(CALL)                                                                 \
  CALL(cuInit, unsigned)                                                                     \
  CALL(cuGetErrorName, Result, const char**)                                                 \
  CALL(cuGetErrorString, Result, const char**)                                               \
  CALL(cuDeviceGetCount, int*)                                                               \
  CALL(cuDeviceGet, Device*, int)                                                            \
  CALL(cuDeviceGetAttribute, int*, int, Device)                                              \
  CALL(cuDevicePrimaryCtxRetain, Context*, Device)                                           \
  CALL(cuDevicePrimaryCtxRelease_v2, Device)                                                 \
  CALL(cuCtxPushCurrent_v2, Context)                                                         \
  CALL(cuCtxPopCurrent_v2, Context*)                                                         \
  CALL(cuCtxGetCurrent, Context*)                                                            \
  CALL(cuThreadExchangeStreamCaptureMode, int*)                                              \
  CALL(cuMemGetAllocationGranularity, std::size_t*, const AllocationProp*, int)              \
  CALL(cuMemAddressReserve, Pointer*, std::size_t, std::size_t, Pointer, unsigned long long) \
  CALL(cuMemAddressFree, Pointer, std::size_t)                                               \
  CALL(cuMemCreate, Physical*, std::size_t, const AllocationProp*, unsigned long long)       \
  CALL(cuMemRelease, Physical)                                                               \
  CALL(cuMemMap, Pointer, std::size_t, std::size_t, Physical, unsigned long long)            \
  CALL(cuMemUnmap, Pointer, std::size_t)                                                     \
  CALL(cuMemSetAccess, Pointer, std::size_t, const AccessDesc*, std::size_t)                 \
  CALL(cuEventCreate, Event*, unsigned)                                                      \
  CALL(cuEventDestroy_v2, Event)                                                             \
  CALL(cuEventRecord, Event, StreamHandle)                                                   \
  CALL(cuEventQuery, Event)                                                                  \
  CALL(cuEventSynchronize, Event)                                                            \
  CALL(cuStreamWaitEvent, StreamHandle, Event, unsigned)                                     \
  CALL(cuEventElapsedTime, float*, Event, Event)                                             \
  CALL(cuMemcpyDtoDAsync_v2, Pointer, Pointer, std::size_t, StreamHandle)                    \
  CALL(cuMemcpyDtoHAsync_v2, void*, Pointer, std::size_t, StreamHandle)                      \
  CALL(cuMemcpyHtoDAsync_v2, Pointer, const void*, std::size_t, StreamHandle)                \
  CALL(cuDeviceTotalMem_v2, std::size_t*, Device)                                            \
  CALL(cuMemHostRegister_v2, void*, std::size_t, unsigned)                                   \
  CALL(cuMemHostUnregister, void*)                                                           \
  CALL(cuMemHostGetDevicePointer_v2, Pointer*, void*, unsigned)                              \
  CALL(cuModuleLoadData, Module*, const void*)                                               \
  CALL(cuModuleUnload, Module)                                                               \
  CALL(cuModuleGetFunction, Function*, Module, const char*)                                  \
  CALL(cuStreamCreateWithPriority, StreamHandle*, unsigned, int)                             \
  CALL(cuStreamDestroy_v2, StreamHandle)                                                     \
  CALL(cuStreamSynchronize, StreamHandle)                                                    \
  CALL(cuLaunchKernel, Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
       unsigned, StreamHandle, void**, void**)

// Thrown if a driver call fails. The text names the call and the error.
class Error : public std::runtime_error {
 public:
  Error(const std::string& text, Result code) : std::runtime_error(text), code(code) {}
  const Result code;
};

template <class... Parameters>
struct Call {
  const char* name;
  Result (*function)(Parameters...);
};

struct Driver {
#define DTR_CUDA_MEMBER(name, ...) Call<__VA_ARGS__> name;
  DTR_CUDA_CALLS(DTR_CUDA_MEMBER)
#undef DTR_CUDA_MEMBER

  // Throws MachineIsFull if memory is lacking (another process may have it), Error on any other
  // result except success.
  template <class... Parameters, class... Arguments>
  void call(const Call<Parameters...>& call, Arguments... arguments) const {
    const Result result = call.function(arguments...);
    if (result != kSuccess) fail(call.name, result);
  }
  [[noreturn]] void fail(const char* call, Result result) const;

  // A driver may bring the clock that times calls, as a symbol dtr_alloc_clock. The tests' fake
  // driver does, so that no figure depends on the machine.
  std::int64_t (*clock)() = nullptr;
  Nanos now() const {
    return clock != nullptr ? Nanos(clock()) : std::chrono::steady_clock::now().time_since_epoch();
  }
};

// For callers that cannot report an error: returns whether the call succeeded.
template <class... Parameters, class... Arguments>
bool succeeds(const Call<Parameters...>& call, Arguments... arguments) {
  return call.function(arguments...) == kSuccess;
}

// For destructors: repeats a call that fails once, since nobody can repeat it later.
template <class... Parameters, class... Arguments>
void release_at_last(const Call<Parameters...>& call, Arguments... arguments) {
  if (!succeeds(call, arguments...)) succeeds(call, arguments...);
}

// Loads the driver for good from $DTR_ALLOC_LIBCUDA, else libcuda.so.1, and initializes it. Throws
// std::runtime_error that says what is missing.
const Driver& load();

// Holds the primary context of a device, which torch and CuPy use as well. A forked child must not
// call the driver: its context is dead, and is not released.
class PrimaryContext {
 public:
  // Throws std::invalid_argument if there is no such device, std::runtime_error if the device
  // cannot map memory by pages.
  PrimaryContext(const Driver& driver, int device);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  bool forked() const;
  const Driver& driver() const { return driver_; }
  Device device() const { return device_; }
  Context context() const { return context_; }
  bool has(int attribute) const;  // CU_DEVICE_ATTRIBUTE_..._SUPPORTED

 private:
  const Driver& driver_;
  const int process_;
  Device device_ = 0;
  Context context_ = nullptr;
};

// Makes the primary context current while the Scope lives. Also allows calls that another thread's
// graph capture would forbid: no call of ours touches a captured stream. Throws std::runtime_error
// in a forked child.
class Scope {
 public:
  explicit Scope(const PrimaryContext& context);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;  // False if the context was current, as in torch's operators.
  int capture_mode_ = kCaptureRelaxed;
};

// For destructors: calls `act` with the context current, and again if it throws. Returns whether
// `act` succeeded: never in a forked child, nor at a process's end, when the context is gone.
template <class Act>
bool act_at_last(const PrimaryContext& context, const Act& act) {
  for (int attempt = 0; attempt < 2 && !context.forked(); ++attempt) {
    try {
      const Scope scope(context);
      act();
      return true;
    } catch (const std::exception&) {
    }
  }
  return false;
}

}  // namespace dtr::cuda
