// The fake driver's devices and contexts, and its words for errors: calls without a rule that a
// pool could break, but for the order of contexts, which each thread has for itself.

#include <algorithm>
#include <map>

#include "tests/fake_cuda/library/world.h"

using namespace fake_cuda;

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
  return at == names.end() ? kInvalidValue : 0;
}

FAKE Result cuGetErrorString(Result code, const char** text) {
  *text = code == kOutOfMemory ? "out of memory" : nullptr;
  return *text == nullptr ? kInvalidValue : 0;
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

FAKE Result cuThreadExchangeStreamCaptureMode(Capture* mode) {
  ENTER(cuThreadExchangeStreamCaptureMode);
  thread_local Capture own = 0;
  INSIST(*mode >= 0 && *mode <= 2, kInvalidValue);
  std::swap(*mode, own);
  return 0;
}
