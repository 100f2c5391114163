#include "runtime/csrc/live/trace/event_log.h"

#include <algorithm>

namespace dtr {

constinit thread_local EventLog::Cause EventLog::cause;
std::atomic<EventLog::Locate> EventLog::locate_{nullptr};

void EventLog::add(const Event& event) {
  const std::lock_guard guard(mutex_);
  if (ring_.size() < most_) return ring_.push_back(event);
  drop(ring_[oldest_]);
  ring_[oldest_] = event;
  oldest_ = (oldest_ + 1) % most_;
}

void EventLog::drop(const Event& oldest) {
  ++dropped_;
  if (oldest.kind == Kind::kAllocated) {
    lasting_[oldest.data] = {oldest, oldest};
  } else if (oldest.kind == Kind::kFreed) {
    lasting_.erase(oldest.data);
  } else if (auto found = lasting_.find(oldest.data); found != lasting_.end()) {
    if (oldest.kind != Kind::kEvicted) found->second.became = oldest;
  }
}

EventLog::Kept EventLog::kept() const {
  const std::lock_guard guard(mutex_);
  Kept kept{.dropped = dropped_};
  for (const auto& [data, one] : lasting_) kept.events.push_back(one.made);
  std::ranges::sort(kept.events, {}, &Event::at);
  for (const auto& [data, one] : lasting_) {
    if (one.became.kind != Kind::kAllocated) kept.events.push_back(one.became);
  }
  kept.events.insert(kept.events.end(), ring_.begin() + oldest_, ring_.end());
  kept.events.insert(kept.events.end(), ring_.begin(), ring_.begin() + oldest_);
  return kept;
}

}  // namespace dtr
