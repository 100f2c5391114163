#include "runtime/csrc/live/session/hold.h"

#include <c10/util/hash.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/csrc/live/session/by_hand.h"
#include "runtime/csrc/live/session/session_swap.h"

namespace dtr {

thread_local std::vector<const c10::StorageImpl*> Reading::storages;
constinit thread_local Hold* Hold::innermost = nullptr;

Reading::Reading(Session& session, c10::ArrayRef<at::Tensor> tensors) : session_(session) {
  Guard guard(session_.locks());
  for (const at::Tensor& tensor : tensors) {
    if (storage_of(tensor)) own_.push_back(storage_of(tensor));
    if (Value* value = StorageTable::value_of(tensor))
      held_.emplace_back(session_.engine(), *value);
  }
  const auto each = [this](const auto& visit) {
    for (const Held& held : held_) visit(*held.value());
  };
  try {
    bring_all_back(each, [&](Value& value) { session_.bring_back(value, guard.lock()); });
  } catch (...) {
    held_.clear();  // While the lock is held.
    throw;
  }
  storages.insert(storages.end(), own_.begin(), own_.end());
}

bool Reading::covers(const c10::StorageImpl* storage) {
  return std::ranges::find(storages, storage) != storages.end();
}

Reading::~Reading() {
  for (const c10::StorageImpl* storage : own_) {
    const auto found = std::ranges::find(storages, storage);
    if (found != storages.end()) storages.erase(found);  // Not in another thread.
  }
  if (own_.empty()) return;
  Guard guard(session_.locks());
  session_.constants().arm(own_);
  for (const Held& held : held_) session_.storages().arm(*held.value());
  held_.clear();
}

Hold::Hold(Session& session, std::uint64_t code, c10::ArrayRef<at::Tensor> read,
           c10::ArrayRef<at::Tensor> written)
    : session_(session), cost_(code) {
  for (const auto& tensors : {read, written}) {
    for (const at::Tensor& tensor : tensors) {
      cost_ = c10::hash_combine(cost_, static_cast<std::size_t>(tensor.numel()));
    }
  }
  std::optional<Turn> turn;
  if (!written.empty()) turn.emplace(session_.locks());
  Guard guard(session_.locks());
  try {
    hand_out(written, Which::kConstants, guard);  // What has read them may need room.
    take(read);
    take(written);
    if (on_tape_) session_.engine().end_operator(0ns);
    bring_back(guard);
    hand_out(written, Which::kAll, guard);  // Some may be constants since.
    if (session_.device().work && !session_.requests().capturing() &&
        session_.requests().follow_stream()) {
      for (const Held& value : values_) session_.requests().read_on_stream(*value.value());
    }
    if (!apart_) start_timing(code);
  } catch (...) {
    values_.clear();  // While the lock is held.
    throw;
  }
  session_.tally().largest_hold = std::max(session_.tally().largest_hold, bytes_);
  innermost = this;
}

// All is locked before any is brought back: what the code is given next is needed behind the code,
// as far as the tape knows, and would be the first to go.
void Hold::take(c10::ArrayRef<at::Tensor> tensors) {
  Engine& engine = session_.engine();
  for (const at::Tensor& tensor : tensors) {
    Value* value = StorageTable::value_of(tensor);
    c10::StorageImpl* storage = storage_of(tensor);
    if (!value && storage && is_armed(storage)) armed_.push_back(storage);
    if (!value) continue;
    const auto is = [&](const Held& one) { return one.value() == value; };
    if (std::ranges::none_of(values_, is)) bytes_ += value->size;
    values_.emplace_back(engine, *value);
    used(engine, *value);
    if (apart_) continue;
    if (!std::exchange(on_tape_, true)) engine.begin_operator();
    engine.accessed(*value);
  }
}

void Hold::bring_back(Guard& guard) {
  bool any = false;
  const auto each = [this](const auto& visit) {
    for (const Held& held : values_) visit(*held.value());
  };
  bring_all_back(each, [&](Value& value) {
    session_.bring_back(value, guard.lock());
    any = true;
  });
  if (any && !apart_) session_.watch_for_thrash();
}

void Hold::hand_out(c10::ArrayRef<at::Tensor> written, Which which, Guard& guard) {
  for (const at::Tensor& tensor : written) {
    if (!tensor.has_storage()) continue;
    const Value* value = StorageTable::value_of(tensor);
    if (which == Which::kConstants && value) continue;
    std::erase_if(values_, [&](const Held& held) { return held.value() == value; });
    dtr::hand_out(session_, *storage_of(*tensor.unsafeGetTensorImpl()), guard.lock());
  }
}

Hold::~Hold() {
  innermost = outer_;
  Guard guard(session_.locks());
  if (!apart_) count();
  for (Held& held : values_) {
    if (held.value()) session_.storages().arm(*held.value());
    held.release();
  }
  session_.constants().arm(armed_);
  if (!apart_) session_.swap().copy_beside(true);
}

// ---- What the code costs

void Hold::start_timing(std::uint64_t code) {
  first_run_ = session_.tally().compiled.insert(code).second;
  if (session_.tally().costs && !session_.requests().capturing() &&
      !session_.options().logical_clock) {
    stream_ = session_.device().current_stream();
    sample_ = session_.tally().costs->begin(cost_, stream_, session_.tally().steps);
  }
  began_ = ticks();
}

void Hold::ended() {
  passed_ = std::max<std::int64_t>(ticks() - began_ - inside_ticks_, 1);
  if (session_.tally().costs)
    session_.tally().costs->end(std::exchange(sample_, {}), stream_, searched_);
}

void Hold::count() {
  if (has_ended()) {
    const std::int64_t own = own_ticks();
    session_.engine().worked(session_.options().logical_clock ? Nanos{bytes_}
                                                              : to_nanoseconds(own));
    session_.tally().touched_bytes += bytes_;
    session_.tally().kernel_ticks += own;
    session_.tally().thrash.computed(own);
    inside_cost_ += own;
  } else if (session_.tally().costs) {
    session_.tally().costs->abandon(sample_);
  }
  if (!outer_) return;
  outer_->inside_ticks_ = outer_inside_ + ticks() - met_;
  outer_->inside_cost_ += inside_cost_;
  outer_->searched_ |= searched_;
}

// On a device, where the host's clock only sees launches, what the whole costs is known. On the
// host the first run counts as usual: it tunes what it runs.
std::int64_t Hold::own_ticks() {
  const std::int64_t usual = session_.tally().usual_ticks(bytes_);
  if (!session_.tally().costs) {
    return first_run_ ? usual : session_.tally().usual.of(cost_, passed_, session_.tally().steps);
  }
  const Nanos whole = session_.tally().costs->cost(cost_, to_nanoseconds(inside_cost_ + usual));
  return std::max<std::int64_t>(to_ticks(whole) - inside_cost_, 0);
}

void Hold::ran(std::int64_t inside, std::int64_t passed, std::int64_t cost) {
  if (!innermost) return;
  innermost->inside_ticks_ = inside + passed;
  innermost->inside_cost_ += cost;
}

void Hold::searched(std::int64_t passed) {
  if (!innermost) return;
  innermost->searched_ = true;
  if (InOperator::state.depth == 0) innermost->inside_ticks_ += passed;
}

// ---- What the code does to its arguments

void Hold::returned(const at::Tensor& result) {
  Guard guard(session_.locks());
  Value* value = StorageTable::value_of(result);
  if (!value || !covers(value)) return;
  for (Held& held : values_) {
    if (held.value() == value) held.release();
  }
  if (value->resident())
    session_.swap().let_write(*value, *storage_of(*result.unsafeGetTensorImpl()));
}

bool Hold::covers(const Value* value) {
  if (!value) return here();
  for (const Hold* hold = innermost; hold; hold = hold->outer_) {
    const auto is = [&](const Held& held) { return held.value() == value; };
    if (std::ranges::any_of(hold->values_, is)) return true;
  }
  return false;
}

void Hold::died(Value& value) {
  for (Hold* hold = innermost; hold; hold = hold->outer_) {
    for (Held& held : hold->values_) {
      if (held.value() == &value) held.release();
    }
  }
}

}  // namespace dtr
