// Declares the part of CUDA's driver API that the pool needs, and loads the driver at run time.
//
// A build against <cuda.h> and libcuda would need a machine with a toolkit or a GPU. So we declare
// the functions here, and open the library when the first CUDA arena is made. No compiler checks
// our declarations, so where <cuda.h> is installed, tests/fake_cuda/declarations.cpp compares every
// size, value and prototype with it. Names have two traps. First, <cuda.h> renames functions by
// macro: its cuEventDestroy is the symbol cuEventDestroy_v2, and the symbol cuEventDestroy is an
// older function. (Of cuEventElapsedTime we use the older one, since drivers before CUDA 12.8 have
// no other.) Second, <cuda.h> has other symbols for per-thread default streams. With our symbols,
// stream 0 is the legacy default stream.

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

// Lists all functions of the driver that we call, each with its symbol's name and its parameters.
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

// Thrown if a driver call fails, but not for lack of memory. The text names the call and the error.
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

  // Calls a function of the driver. Throws MachineIsFull if the driver finds no memory (another
  // process may have it), and Error after any other failure.
  template <class... Parameters, class... Arguments>
  void call(const Call<Parameters...>& call, Arguments... arguments) const {
    const Result result = call.function(arguments...);
    if (result != kSuccess) fail(call.name, result);
  }
  [[noreturn]] void fail(const char* call, Result result) const;

  // If the driver's library has a symbol dtr_alloc_clock, now() reads that clock. Only the tests'
  // fake driver has it, so that times in tests do not depend on the machine.
  std::int64_t (*clock)() = nullptr;
  Nanos now() const {
    return clock != nullptr ? Nanos(clock()) : std::chrono::steady_clock::now().time_since_epoch();
  }
};

// For callers that cannot report an error: calls the driver, and returns whether that succeeded.
template <class... Parameters, class... Arguments>
bool succeeds(const Call<Parameters...>& call, Arguments... arguments) {
  return call.function(arguments...) == kSuccess;
}

// For destructors: if a call fails, tries it once more, since nobody can do so later.
template <class... Parameters, class... Arguments>
void release_at_last(const Call<Parameters...>& call, Arguments... arguments) {
  if (!succeeds(call, arguments...)) succeeds(call, arguments...);
}

// Loads the driver from the path $DTR_ALLOC_LIBCUDA, or libcuda.so.1 if that is not set, and
// initializes it. Never unloads it. Throws std::runtime_error, whose text says what is missing.
const Driver& load();

// Holds the primary context of a device, which torch and CuPy use as well. In a forked child the
// context does not work: the child must not call the driver, and the destructor releases nothing.
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

// Makes the primary context current while the Scope lives, and allows calls that CUDA forbids in a
// graph capture (ours touch no captured stream). Throws std::runtime_error in a forked child.
class Scope {
 public:
  explicit Scope(const PrimaryContext& context);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;  // False if the context was current before, as in torch's operators.
  int capture_mode_ = kCaptureRelaxed;
};

// For destructors: makes the context current and calls `act`; if that throws, tries once more.
// Returns false if both failed, in a forked child, or when the context is gone (the process ends).
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
