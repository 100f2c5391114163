// Copies and takes time stamps on a CUDA device. There are as many timed events as samples under
// way, a few hundred at most (operator_costs.h).

#include "dtr_alloc/pool/csrc/cuda/driver.h"
#include "dtr_alloc/pool/csrc/cuda/events.h"
#include "dtr_alloc/pool/csrc/device_work.h"

namespace dtr {
namespace {

using cuda::Event;
using cuda::Scope;

class CudaWork final : public DeviceWork {
 public:
  explicit CudaWork(int device)
      : context_(std::make_shared<cuda::PrimaryContext>(cuda::load(), device)),
        driver_(context_->driver()),
        stamps_(context_, cuda::kEventDefault) {}

  void copy(void* to, const void* from, Bytes bytes, Stream stream) override {
    if (bytes == 0) return;
    const Scope scope(*context_);
    driver_.call(driver_.cuMemcpyDtoDAsync_v2, reinterpret_cast<cuda::Pointer>(to),
                 reinterpret_cast<cuda::Pointer>(from), static_cast<std::size_t>(bytes),
                 cuda::handle(stream));
  }

  void* stamp(Stream stream) override { return stamps_.record(stream); }

  std::optional<Nanos> between(void* first, void* last) override {
    const Scope scope(*context_);
    float milliseconds = 0;
    const cuda::Result result = driver_.cuEventElapsedTime.function(
        &milliseconds, static_cast<Event>(first), static_cast<Event>(last));
    if (result == cuda::kNotReady) return std::nullopt;
    if (result != cuda::kSuccess) driver_.fail(driver_.cuEventElapsedTime.name, result);
    return std::chrono::duration_cast<Nanos>(
        std::chrono::duration<double, std::milli>(milliseconds));
  }

  void give_back(void* stamp) override { stamps_.give_back(stamp); }

  Bytes total_memory() const override {
    std::size_t bytes = 0;
    driver_.call(driver_.cuDeviceTotalMem_v2, &bytes, context_->device());
    return static_cast<Bytes>(bytes);
  }

 private:
  const std::shared_ptr<cuda::PrimaryContext> context_;
  const cuda::Driver& driver_;
  cuda::EventStore stamps_;
};

}  // namespace

std::unique_ptr<DeviceWork> make_cuda_work(int device) {
  return std::make_unique<CudaWork>(device);
}

}  // namespace dtr
