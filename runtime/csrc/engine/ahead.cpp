// What comes back ahead of its use, where copies run beside the program's work
// (live/storages/swap.h).
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
#include <utility>

#include "runtime/csrc/engine/needs.h"

namespace dtr {

// In the step under way; kNever where none is foretold.
Nanos Needs::first_need(const Value& value) const {
  if (!tapes_.foretell()) return Tapes::kNever;
  const Nanos at = of(value);
  return std::min(at < tapes_.length() ? at : Tapes::kNever, tapes_.first_use(value));
}

// Not what is about to be collected.
void Needs::await(Value& value) {
  const bool missing = value.movable() && !value.resident();
  if (!missing || !(value.home || value.uses)) return;
  catch_up();
  awaited_.add(value, first_need(value));
}

// By another tape, or in another step.
void Needs::await_anew() {
  link_free_at_ = 0ns;
  awaited_.set_all([this](const Value& value) { return first_need(value); });
}

std::vector<Value*> Needs::due(Nanos most) {
  if (awaited_.entries().empty()) return {};
  catch_up();
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

void Needs::begins_copy(Value& value) {
  catch_up();
  awaited_.remove(value);
  if (!tapes_.foretell()) return;
  link_free_at_ =
      std::max(link_free_at_, tapes_.begin_of(0)) + columns_.transfer()->one_way(value.size);
}

}  // namespace dtr
