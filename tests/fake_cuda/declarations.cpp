// Our declarations of the driver against those of <cuda.h>: it compiles if they agree.
//
// The types are others by name, so a prototype agrees if each parameter has the size and the kind
// (pointer or number, what it points to constant or not) of theirs. <cuda.h> renames functions by
// macro; the list of calls is therefore expanded here a second time, after it: a name that it
// renames would come out as another one.

#include <cuda.h>

#include <string_view>
#include <type_traits>

#include "dtr_alloc/pool/csrc/cuda/driver.h"
#include "library/world.h"

namespace dtr::cuda {
namespace {

template <class A, class B>
constexpr bool alike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
    std::is_const_v<std::remove_pointer_t<A>> == std::is_const_v<std::remove_pointer_t<B>> &&
    std::is_pointer_v<std::remove_pointer_t<A>> == std::is_pointer_v<std::remove_pointer_t<B>>;

template <class... A, class R, class... B>
constexpr bool agree(Call<A...>*, R (*)(B...)) {
  if constexpr (sizeof...(A) != sizeof...(B)) {
    return false;
  } else {
    return sizeof(R) == sizeof(Result) && (alike<A, B> && ...);
  }
}

#define TEXT(name) #name
#define EXPANDED(name) TEXT(name)

#define CHECK(name, ...) \
  static_assert(agree(static_cast<decltype(Driver::name)*>(nullptr), &::name));
DTR_CUDA_CALLS(CHECK)

// Every name as the header declares it, before its macros: cuEventDestroy stands for ..._v2.
static_assert(std::string_view(EXPANDED(cuEventDestroy)) == "cuEventDestroy_v2");
static_assert(std::string_view(EXPANDED(cuCtxPushCurrent)) == "cuCtxPushCurrent_v2");
static_assert(std::string_view(EXPANDED(cuCtxPopCurrent)) == "cuCtxPopCurrent_v2");
static_assert(std::string_view(EXPANDED(cuDevicePrimaryCtxRelease)) ==
              "cuDevicePrimaryCtxRelease_v2");
constexpr std::string_view kWritten[] = {
#define WRITTEN(name, ...) #name,
    DTR_CUDA_CALLS(WRITTEN)};
constexpr std::string_view kRenamed[] = {
#define RENAMED(name, ...) EXPANDED(name),
    DTR_CUDA_CALLS(RENAMED)};
constexpr bool same_names() {
  for (std::size_t i = 0; i < std::size(kWritten); i++) {
    if (kWritten[i] != kRenamed[i] && kWritten[i] != "cuEventElapsedTime") return false;
  }
  return true;
}
static_assert(same_names());

static_assert(sizeof(AllocationProp) == sizeof(CUmemAllocationProp));
static_assert(offsetof(AllocationProp, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProp, requested_handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProp, gpu_direct_rdma_capable) ==
              offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
static_assert(offsetof(AllocationProp, compression_type) ==
              offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(AccessDesc) == sizeof(CUmemAccessDesc));
static_assert(offsetof(AccessDesc, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(Location) == sizeof(CUmemLocation));
static_assert(sizeof(Pointer) == sizeof(CUdeviceptr));
static_assert(sizeof(Physical) == sizeof(CUmemGenericAllocationHandle));

static_assert(kSuccess == CUDA_SUCCESS);
static_assert(kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kMemoryPinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(kAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(kGranularityMinimum == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
static_assert(kCaptureRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(kHandlePosix == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(kPosixHandles == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
static_assert(kRdmaPages == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
static_assert(kVirtualMemoryManagement == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
#if CUDA_VERSION >= 12030
static_assert(kHostNumaNode == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
#endif
static_assert(kEventDefault == CU_EVENT_DEFAULT);
static_assert(kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kHostPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kHostDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);

}  // namespace
}  // namespace dtr::cuda

// The fake driver's own codes.
static_assert(fake_cuda::kInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(fake_cuda::kNotInitialized == CUDA_ERROR_NOT_INITIALIZED);
static_assert(fake_cuda::kInvalidDevice == CUDA_ERROR_INVALID_DEVICE);
static_assert(fake_cuda::kInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(fake_cuda::kInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
static_assert(fake_cuda::kIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS);
static_assert(fake_cuda::kNotSupported == CUDA_ERROR_NOT_SUPPORTED);
