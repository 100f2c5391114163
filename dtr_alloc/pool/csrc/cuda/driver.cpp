// Opens the driver and looks up its symbols, once for each path. The driver is never closed,
// because it keeps threads of its own. A failure is not remembered, so that a test or a user can
// set $DTR_ALLOC_LIBCUDA right and try again.

#include "dtr_alloc/pool/csrc/cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

namespace dtr::cuda {
namespace {

constexpr const char* kOnCpu = "; on CPU use dtr_alloc.rematerialize(..., device=\"cpu\")";

template <class... Parameters>
void look_up(void* library, const std::string& path, const char* name, Call<Parameters...>& call) {
  call.name = name;
  call.function = reinterpret_cast<Result (*)(Parameters...)>(dlsym(library, name));
  if (call.function == nullptr) {
    throw std::runtime_error("the CUDA driver " + path + " has no " + name +
                             ": it is older than CUDA 11.2, update it" + kOnCpu);
  }
}

std::unique_ptr<Driver> open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw std::runtime_error("no CUDA driver: " + path + " could not be opened: " +
                             (reason != nullptr ? reason : "unknown reason") + kOnCpu);
  }
  auto driver = std::make_unique<Driver>();
#define DTR_CUDA_LOOK_UP(name, ...) look_up(library, path, #name, driver->name);
  DTR_CUDA_CALLS(DTR_CUDA_LOOK_UP)
  driver->clock = reinterpret_cast<std::int64_t (*)()>(dlsym(library, "dtr_alloc_clock"));
#undef DTR_CUDA_LOOK_UP
  return driver;
}

}  // namespace

void Driver::fail(const char* call, Result result) const {
  const char* error = nullptr;
  const char* meaning = nullptr;
  cuGetErrorName.function(result, &error);
  cuGetErrorString.function(result, &meaning);
  std::string text = std::string(call) + " failed: ";
  text += error != nullptr ? error : "CUDA error " + std::to_string(result);
  if (meaning != nullptr) text += std::string(" (") + meaning + ")";
  if (result == kOutOfMemory) throw MachineIsFull(text);
  throw Error(text, result);
}

const Driver& load() {
  static std::mutex& mutex = *new std::mutex;
  static auto& drivers = *new std::map<std::string, std::unique_ptr<Driver>>;
  const char* chosen = std::getenv("DTR_ALLOC_LIBCUDA");
  const std::string path = chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1";
  const std::lock_guard lock(mutex);
  std::unique_ptr<Driver>& driver = drivers[path];
  if (driver == nullptr) driver = open(path);
  driver->call(driver->cuInit, 0u);
  return *driver;
}

PrimaryContext::PrimaryContext(const Driver& driver, int device)
    : driver_(driver), process_(getpid()) {
  int count = 0;
  driver_.call(driver_.cuDeviceGetCount, &count);
  if (device < 0 || device >= count) {
    throw std::invalid_argument("there is no CUDA device " + std::to_string(device) +
                                ": this process sees " + std::to_string(count));
  }
  driver_.call(driver_.cuDeviceGet, &device_, device);
  if (!has(kVirtualMemoryManagement)) {
    throw std::runtime_error("CUDA device " + std::to_string(device) +
                             " cannot map memory by pages (virtual memory management), which the "
                             "pool needs");
  }
  driver_.call(driver_.cuDevicePrimaryCtxRetain, &context_, device_);
}

PrimaryContext::~PrimaryContext() {
  if (!forked()) release_at_last(driver_.cuDevicePrimaryCtxRelease_v2, device_);
}

bool PrimaryContext::has(int attribute) const {
  int answer = 0;
  driver_.call(driver_.cuDeviceGetAttribute, &answer, attribute, device_);
  return answer != 0;
}

bool PrimaryContext::forked() const { return getpid() != process_; }

Scope::Scope(const PrimaryContext& context) : driver_(context.driver()) {
  if (context.forked()) {
    throw std::runtime_error(
        "a CUDA pool cannot be used in a forked process, where CUDA does not work: start the "
        "process with \"spawn\"");
  }
  Context current = nullptr;
  driver_.call(driver_.cuCtxGetCurrent, &current);
  pushed_ = current != context.context();
  if (pushed_) driver_.call(driver_.cuCtxPushCurrent_v2, context.context());
  // A driver that refuses this call still does the rest.
  if (!succeeds(driver_.cuThreadExchangeStreamCaptureMode, &capture_mode_)) capture_mode_ = -1;
}

Scope::~Scope() {
  if (capture_mode_ >= 0) succeeds(driver_.cuThreadExchangeStreamCaptureMode, &capture_mode_);
  Context popped = nullptr;
  if (pushed_) release_at_last(driver_.cuCtxPopCurrent_v2, &popped);
}

}  // namespace dtr::cuda
