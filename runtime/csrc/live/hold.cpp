#include "runtime/csrc/live/hold.h"

#include <algorithm>

#include "runtime/csrc/live/locks.h"
#include "runtime/csrc/live/ticks.h"

namespace dtr {

thread_local int Session::Reading::depth = 0;
thread_local Session::Hold* Session::Hold::innermost = nullptr;

Session::Reading::Reading(Session& session, const at::Tensor& tensor) : session_(session) {
  Guard guard(session_);
  if (Value* value = StorageTable::value_of(tensor)) {
    Held held(session_.engine_, *value);
    if (!value->resident()) session_.bring_back(*value, guard.lock());
    held_ = std::move(held);
  }
  ++depth;
}

Session::Reading::~Reading() {
  --depth;
  if (!held_.value()) return;
  Guard guard(session_);
  session_.storages_.arm(*held_.value());
  held_.release();
}

Session::Hold::Hold(Session& session, c10::ArrayRef<at::Tensor> read,
                    c10::ArrayRef<at::Tensor> written)
    : session_(session) {
  note_use(read, written);
  Bytes bytes = 0;
  for (const at::Tensor& tensor : written) {
    if (!tensor.has_storage()) continue;
    Turn turn(session_);
    Guard guard(session_);
    c10::StorageImpl& storage = *storage_of(*tensor.unsafeGetTensorImpl());
    if (const Value* value = StorageTable::value_of(&storage)) bytes += value->size;
    session_.hand_out(storage, guard.lock());
  }
  Guard guard(session_);
  std::vector<Held> held;
  for (const at::Tensor& tensor : read) {
    Value* value = StorageTable::value_of(tensor);
    if (!value) continue;
    const auto is = [&](const Held& one) { return one.value() == value; };
    if (std::ranges::none_of(held, is)) bytes += value->size;
    held.emplace_back(session_.engine_, *value);
    session_.engine_.used(*value);
  }
  for (const Held& value : held) {
    if (!value.value()->resident()) session_.bring_back(*value.value(), guard.lock());
  }
  if (session_.device_.work && session_.captures_ == 0 && session_.follow_stream()) {
    for (const Held& value : held) session_.read_on_stream(*value.value());
  }
  session_.largest_hold_ = std::max(session_.largest_hold_, bytes);
  bytes_ = bytes;
  began_ = ticks();
  clock_ = session_.engine_.stats().clock;
  values_ = std::move(held);
  innermost = this;
}

// On the tape the code is an operator: in the next step, too, all of this is needed here.
void Session::Hold::note_use(c10::ArrayRef<at::Tensor> read, c10::ArrayRef<at::Tensor> written) {
  Guard guard(session_);
  Engine& engine = session_.engine_;
  engine.begin_operator();
  for (const auto& tensors : {read, written}) {
    for (const at::Tensor& tensor : tensors) {
      if (Value* value = StorageTable::value_of(tensor)) engine.accessed(*value);
    }
  }
  engine.end_operator(0ns);
}

// Beside the operators that the code ran.
Nanos Session::Hold::own_time() const {
  if (session_.options_.logical_clock) return Nanos{bytes_};
  return to_nanoseconds(ticks() - began_) - (session_.engine_.stats().clock - clock_);
}

Session::Hold::~Hold() {
  innermost = outer_;
  Guard guard(session_);
  session_.engine_.worked(std::max(own_time(), 0ns));
  for (Held& held : values_) {
    if (held.value()) session_.storages_.arm(*held.value());
    held.release();
  }
}

void Session::Hold::returned(const at::Tensor& result) {
  Guard guard(session_);
  Value* value = StorageTable::value_of(result);
  if (!value || !covers(value)) return;
  for (Held& held : values_) {
    if (held.value() == value) held.release();
  }
  if (value->resident()) session_.let_write(*value, *storage_of(*result.unsafeGetTensorImpl()));
}

bool Session::Hold::covers(const Value* value) {
  if (!value) return here();
  for (const Hold* hold = innermost; hold; hold = hold->outer_) {
    const auto is = [&](const Held& held) { return held.value() == value; };
    if (std::ranges::any_of(hold->values_, is)) return true;
  }
  return false;
}

void Session::Hold::died(Value& value) {
  for (Hold* hold = innermost; hold; hold = hold->outer_) {
    for (Held& held : hold->values_) {
      if (held.value() == &value) held.release();
    }
  }
}

}  // namespace dtr
