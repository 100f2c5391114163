#include "dtr_alloc/pool/csrc/cuda/events.h"

namespace dtr::cuda {

EventStore::~EventStore() {
  if (context_->forked()) return;
  for (const Event event : idle_) release_at_last(context_->driver().cuEventDestroy_v2, event);
}

Event EventStore::record(Stream stream) {
  const Driver& driver = context_->driver();
  const Scope scope(*context_);
  Event event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      event = idle_.back();
      idle_.pop_back();
    }
  }
  if (event == nullptr) driver.call(driver.cuEventCreate, &event, flags_);
  try {
    driver.call(driver.cuEventRecord, event, handle(stream));
  } catch (...) {
    give_back(event);
    throw;
  }
  return event;
}

void EventStore::give_back(void* event) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(static_cast<Event>(event));
}

namespace {

class Events final : public StreamEvents {
 public:
  explicit Events(std::shared_ptr<PrimaryContext> context)
      : context_(std::move(context)), store_(context_, kEventDisableTiming) {}

  Stream canonical(Stream stream) const override {
    if (stream == kStreamPerThread) {
      throw std::invalid_argument(
          "the per-thread default stream is another one in every thread, and the pool could not "
          "tell them apart: use a stream of your own");
    }
    return stream == kStreamLegacy ? 0 : stream;
  }

  void* record(Stream stream) override { return store_.record(stream); }

  void wait(Stream stream, void* event) override {
    const Scope scope(*context_);
    driver_.call(driver_.cuStreamWaitEvent, handle(stream), static_cast<Event>(event), 0u);
  }

  bool done(void* event) override {
    const Scope scope(*context_);
    const Result result = driver_.cuEventQuery.function(static_cast<Event>(event));
    if (result == kSuccess || result == kNotReady) return result == kSuccess;
    driver_.fail(driver_.cuEventQuery.name, result);
  }

  void synchronize(void* event) override {
    const Scope scope(*context_);
    driver_.call(driver_.cuEventSynchronize, static_cast<Event>(event));
  }

  void give_back(void* event) override { store_.give_back(event); }

 private:
  const std::shared_ptr<PrimaryContext> context_;
  const Driver& driver_ = context_->driver();
  EventStore store_;
};

}  // namespace

std::unique_ptr<StreamEvents> make_events(std::shared_ptr<PrimaryContext> context) {
  return std::make_unique<Events>(std::move(context));
}

}  // namespace dtr::cuda
