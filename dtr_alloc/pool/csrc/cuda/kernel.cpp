#include "dtr_alloc/pool/csrc/cuda/kernel.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace dtr {
namespace {

constexpr std::size_t kPage = 4096;
constexpr int kFirst = -1 << 20;  // The driver clamps it to its greatest priority.

}  // namespace

CudaKernel::CudaKernel(int device, const std::string& image, const std::string& name)
    : device_(std::make_shared<Device>(device)) {
  const cuda::Driver& driver = device_->driver;
  const cuda::Scope scope(device_->context);
  try {
    driver.call(driver.cuModuleLoadData, &module_, image.c_str());
    driver.call(driver.cuModuleGetFunction, &function_, module_, name.c_str());
    driver.call(driver.cuStreamCreateWithPriority, &stream_, cuda::kStreamNonBlocking, kFirst);
  } catch (...) {
    release();
    throw;
  }
}

CudaKernel::~CudaKernel() {
  cuda::act_at_last(device_->context, [&] { release(); });
}

void CudaKernel::release() {
  const cuda::Driver& driver = device_->driver;
  if (stream_) cuda::release_at_last(driver.cuStreamDestroy_v2, stream_);
  if (module_) cuda::release_at_last(driver.cuModuleUnload, module_);
}

void CudaKernel::Device::map(std::byte* begin, std::size_t bytes) {
  mapped.reserve(mapped.size() + 1);
  const cuda::Scope scope(context);
  driver.call(driver.cuMemHostRegister_v2, static_cast<void*>(begin), bytes,
              cuda::kHostPortable | cuda::kHostDeviceMap);
  cuda::Pointer device = 0;
  if (!cuda::succeeds(driver.cuMemHostGetDevicePointer_v2, &device, static_cast<void*>(begin),
                      0u)) {
    device = 0;
  }
  mapped.push_back({begin, bytes, device});
}

// Returns whether the driver no longer knows the memory.
bool CudaKernel::Device::unmap(const std::byte* begin) {
  const auto found = std::ranges::find(mapped, begin, &Mapped::begin);
  if (found == mapped.end()) return true;
  mapped.erase(found);
  if (context.forked()) return true;
  void* address = const_cast<std::byte*>(begin);
  return cuda::act_at_last(context, [&] { driver.call(driver.cuMemHostUnregister, address); });
}

std::shared_ptr<std::byte[]> CudaKernel::memory(std::size_t bytes) {
  bytes = round_up(bytes, kPage);
  auto* begin = static_cast<std::byte*>(std::aligned_alloc(kPage, bytes));
  if (begin == nullptr) throw std::bad_alloc();
  std::memset(begin, 0, bytes);
  try {
    device_->map(begin, bytes);
  } catch (const std::exception&) {  // Then only the host can use it.
  }
  return {begin, [device = device_](std::byte* gone) {
            if (device->unmap(gone)) std::free(gone);
          }};
}

cuda::Pointer CudaKernel::seen(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  for (const Mapped& one : device_->mapped) {
    if (one.device != 0 && one.begin <= byte && byte < one.begin + one.bytes) {
      return one.device + static_cast<cuda::Pointer>(byte - one.begin);
    }
  }
  return 0;
}

void CudaKernel::run(unsigned blocks, unsigned threads, unsigned shared_bytes, void** parameters) {
  const cuda::Driver& driver = device_->driver;
  const cuda::Scope scope(device_->context);
  driver.call(driver.cuLaunchKernel, function_, blocks, 1u, 1u, threads, 1u, 1u, shared_bytes,
              stream_, parameters, static_cast<void**>(nullptr));
  driver.call(driver.cuStreamSynchronize, stream_);
}

}  // namespace dtr
