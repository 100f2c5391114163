#include "runtime/csrc/engine/awaited.h"

#include <algorithm>
#include <new>
#include <stdexcept>

namespace dtr {

void Awaited::add(Value& value, Nanos need) {
  try {
    entries_.push_back({need, &value});
  } catch (const std::bad_alloc&) {
    return;
  }
  value.need.awaited = static_cast<std::int32_t>(entries_.size()) - 1;
  soonest_ = std::min(soonest_, need);
}

void Awaited::remove(Value& value) {
  if (!has(value)) return;
  const Entry last = entries_.back();
  entries_[value.need.awaited] = last;
  last.value->need.awaited = value.need.awaited;
  entries_.pop_back();
  value.need.awaited = kNowhere;
}

void Awaited::set(Value& value, Nanos need) {
  entries_[value.need.awaited].need = need;
  soonest_ = std::min(soonest_, need);
}

std::vector<Awaited::Entry> Awaited::needed(Nanos from, Nanos until, Nanos never) {
  std::vector<Entry> found;
  if (soonest_ > until) return found;
  found.reserve(entries_.size());  // From here nothing fails.
  soonest_ = Nanos::max();
  for (Entry& entry : entries_) {
    if (entry.need < from) entry.need = never;
    if (entry.need <= until) found.push_back(entry);
    soonest_ = std::min(soonest_, entry.need);
  }
  std::ranges::sort(found, {}, &Entry::need);
  return found;
}

void Awaited::check() const {
  for (std::size_t at = 0; at < entries_.size(); ++at) {
    const auto& [need, value] = entries_[at];
    if (value->need.awaited != static_cast<std::int32_t>(at)) {
      throw std::logic_error("an awaited value does not know its place");
    }
    if (need < soonest_) throw std::logic_error("a value is needed before the soonest need");
    if (value->resident() || !value->movable()) {
      throw std::logic_error("a value is awaited that no copy brings back");
    }
  }
}

}  // namespace dtr
