// An event is made once and recorded many times: creating one costs some microseconds, recording it
// about one. They carry no time stamps, which would make recording dearer. An event may be recorded
// anew while a stream still waits for its former place: the driver takes the place at the call.

#include "dtr_alloc/pool/csrc/cuda/events.h"

#include <vector>

namespace dtr::cuda {
namespace {

StreamHandle handle(Stream stream) { return reinterpret_cast<StreamHandle>(stream); }
Event event_of(void* event) { return static_cast<Event>(event); }

class Events final : public StreamEvents {
 public:
  explicit Events(std::shared_ptr<PrimaryContext> context)
      : context_(std::move(context)), driver_(context_->driver()) {}

  ~Events() override {
    if (context_->forked()) return;
    for (const Event event : idle_) release_at_last(driver_.cuEventDestroy_v2, event);
  }

  Stream canonical(Stream stream) const override {
    if (stream == kStreamPerThread) {
      throw std::invalid_argument(
          "the per-thread default stream is another one in every thread, and the pool could not "
          "tell them apart: use a stream of your own");
    }
    return stream == kStreamLegacy ? 0 : stream;
  }

  void* record(Stream stream) override {
    const Scope scope(*context_);
    Event event = nullptr;
    if (idle_.empty()) {
      driver_.call(driver_.cuEventCreate, &event, kEventDisableTiming);
      idle_.push_back(event);
    }
    event = idle_.back();
    driver_.call(driver_.cuEventRecord, event, handle(stream));
    idle_.pop_back();
    return event;
  }

  void wait(Stream stream, void* event) override {
    const Scope scope(*context_);
    driver_.call(driver_.cuStreamWaitEvent, handle(stream), event_of(event), 0u);
  }

  bool done(void* event) override {
    const Scope scope(*context_);
    const Result result = driver_.cuEventQuery.function(event_of(event));
    if (result == kSuccess || result == kNotReady) return result == kSuccess;
    driver_.fail(driver_.cuEventQuery.name, result);
  }

  void synchronize(void* event) override {
    const Scope scope(*context_);
    driver_.call(driver_.cuEventSynchronize, event_of(event));
  }

  void give_back(void* event) override { idle_.push_back(event_of(event)); }

 private:
  const std::shared_ptr<PrimaryContext> context_;
  const Driver& driver_;
  std::vector<Event> idle_;
};

}  // namespace

std::unique_ptr<StreamEvents> make_events(std::shared_ptr<PrimaryContext> context) {
  return std::make_unique<Events>(std::move(context));
}

}  // namespace dtr::cuda
