// Copies and time stamps of a CUDA device. Events that carry time are made once and kept: there are
// as many as samples under way, a few hundred at most (operator_costs.h).

#include <chrono>
#include <mutex>
#include <vector>

#include "dtr_alloc/pool/csrc/cuda/driver.h"
#include "dtr_alloc/pool/csrc/device_work.h"

namespace dtr {
namespace {

using cuda::Event;
using cuda::Scope;

cuda::StreamHandle handle(Stream stream) { return reinterpret_cast<cuda::StreamHandle>(stream); }

class CudaWork final : public DeviceWork {
 public:
  explicit CudaWork(int device) : context_(cuda::load(), device), driver_(context_.driver()) {}

  ~CudaWork() override {
    if (context_.forked()) return;
    for (Event event : idle_) cuda::release_at_last(driver_.cuEventDestroy_v2, event);
  }

  void copy(void* to, const void* from, Bytes bytes, Stream stream) override {
    if (bytes == 0) return;
    const Scope scope(context_);
    driver_.call(driver_.cuMemcpyDtoDAsync_v2, reinterpret_cast<cuda::Pointer>(to),
                 reinterpret_cast<cuda::Pointer>(from), static_cast<std::size_t>(bytes),
                 handle(stream));
  }

  void* stamp(Stream stream) override {
    const Scope scope(context_);
    Event event = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        event = idle_.back();
        idle_.pop_back();
      }
    }
    if (event == nullptr) driver_.call(driver_.cuEventCreate, &event, cuda::kEventDefault);
    try {
      driver_.call(driver_.cuEventRecord, event, handle(stream));
    } catch (...) {
      give_back(event);
      throw;
    }
    return event;
  }

  std::optional<Nanos> between(void* first, void* last) override {
    const Scope scope(context_);
    float milliseconds = 0;
    const cuda::Result result = driver_.cuEventElapsedTime.function(
        &milliseconds, static_cast<Event>(first), static_cast<Event>(last));
    if (result == cuda::kNotReady) return std::nullopt;
    if (result != cuda::kSuccess) driver_.fail(driver_.cuEventElapsedTime.name, result);
    return std::chrono::duration_cast<Nanos>(
        std::chrono::duration<double, std::milli>(milliseconds));
  }

  void give_back(void* stamp) override {
    const std::lock_guard lock(mutex_);
    idle_.push_back(static_cast<Event>(stamp));
  }

  Bytes total_memory() const override {
    std::size_t bytes = 0;
    driver_.call(driver_.cuDeviceTotalMem_v2, &bytes, context_.device());
    return static_cast<Bytes>(bytes);
  }

 private:
  const cuda::PrimaryContext context_;
  const cuda::Driver& driver_;
  std::mutex mutex_;
  std::vector<Event> idle_;
};

}  // namespace

std::unique_ptr<DeviceWork> make_cuda_work(int device) {
  return std::make_unique<CudaWork>(device);
}

}  // namespace dtr
