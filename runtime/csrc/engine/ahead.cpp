// What comes back ahead of its use, where copies run beside the program's work (live/storages/swap.h).
//
// A value that was moved is missing until the program touches it, and whoever touches it waits for
// the copy. While a tape foretells, the copy can begin earlier. The next one that is missing comes
// first, to a free place. Nothing is evicted for it.
//
// It begins as late as it may, because memory that it lies in serves nobody else. That is the last
// operator after which the link can still bring what is on its way, and all that is needed no later
// than some value, before that value's need. For example, 20 gradients that one operator reads
// begin 20 copies' time before it. Cost: a comparison until something is needed soon; then, after
// each operator, a look at all that is missing, a few nanoseconds each. Source: Cao, Felten, Karlin
// and Li, "A Study of Integrated Prefetching and Caching Strategies" (SIGMETRICS 1995), of which
// the order and the wish to do no harm are taken.

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/csrc/engine/engine.h"

namespace dtr {

// ---- Awaited

void Awaited::add(Value& value, Nanos need) {
  try {
    entries_.push_back({need, &value});
  } catch (const std::bad_alloc&) {
    return;
  }
  value.awaited = static_cast<std::int32_t>(entries_.size()) - 1;
  soonest_ = std::min(soonest_, need);
}

void Awaited::remove(Value& value) {
  if (!has(value)) return;
  const Entry last = entries_.back();
  entries_[value.awaited] = last;
  last.value->awaited = value.awaited;
  entries_.pop_back();
  value.awaited = kNowhere;
}

void Awaited::set(Value& value, Nanos need) {
  entries_[value.awaited].need = need;
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
    if (value->awaited != static_cast<std::int32_t>(at)) {
      throw std::logic_error("an awaited value does not know its place");
    }
    if (need < soonest_) throw std::logic_error("a value is needed before the soonest need");
    if (value->resident() || !value->movable()) {
      throw std::logic_error("a value is awaited that no copy brings back");
    }
  }
}

// ---- The engine's part

// In the step under way; kNever where none is foretold.
Nanos Engine::first_need(const Value& value) const {
  if (!tapes_.foretell()) return Tapes::kNever;
  const Nanos at = need(value);
  return std::min(at < tapes_.length() ? at : Tapes::kNever, tapes_.first_use(value));
}

// Not what is about to be collected.
void Engine::await(Value& value) {
  const bool missing = value.movable() && !value.resident();
  if (missing && (value.home || value.uses)) awaited_.add(value, first_need(value));
}

// By another tape, or in another step.
void Engine::await_anew() {
  link_free_at_ = 0ns;
  awaited_.set_all([this](const Value& value) { return first_need(value); });
}

std::vector<Value*> Engine::due(Nanos most) {
  const Nanos next = tapes_.begin_of(0), later = tapes_.begin_of(1);  // When the next chance is.
  std::vector<Value*> values;
  std::size_t due = 0;
  Nanos copies = std::max(link_free_at_ - next, 0ns);
  for (const auto& [need, value] : awaited_.needed(next, later + most, Tapes::kNever)) {
    copies += columns_.transfer()->one_way(value->size);
    values.push_back(value);
    if (need - later < copies) due = values.size();
  }
  values.resize(due);
  return values;
}

void Engine::begins_copy(Value& value) {
  awaited_.remove(value);
  if (!tapes_.foretell()) return;
  link_free_at_ =
      std::max(link_free_at_, tapes_.begin_of(0)) + columns_.transfer()->one_way(value.size);
}

}  // namespace dtr
