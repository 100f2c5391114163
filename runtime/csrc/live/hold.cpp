#include "runtime/csrc/live/hold.h"

#include <algorithm>

#include "runtime/csrc/live/guard.h"

namespace dtr {

thread_local Session::Hold* Session::Hold::innermost = nullptr;

Session::Hold::Hold(Session& session, c10::ArrayRef<at::Tensor> read,
                    c10::ArrayRef<at::Tensor> written)
    : session_(session) {
  for (const at::Tensor& tensor : written) {
    if (!tensor.has_storage()) continue;
    Turn turn(session_);
    Guard guard(session_);
    session_.hand_out(*tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(),
                      guard.lock());
  }
  Guard guard(session_);
  Engine& engine = session_.engine_;
  for (const at::Tensor& tensor : read) {
    if (!tensor.has_storage()) continue;
    Value* value = value_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    if (!value) continue;
    engine.lock(*value);
    engine.touch(*value);
    session_.first_use(*value);
    values_.push_back(value);
  }
  try {
    for (Value* value : values_) {
      if (!value->resident()) session_.bring_back(*value, guard.lock());
    }
  } catch (...) {
    release();
    throw;
  }
  if (session_.device_.work && session_.follow_stream()) {
    for (Value* value : values_) session_.read_on_stream(*value);
  }
  innermost = this;
}

Session::Hold::~Hold() {
  innermost = outer_;
  Guard guard(session_);
  release();
}

void Session::Hold::release() {
  for (Value* value : values_) {
    if (!value) continue;
    if (value->producer && value->home) {
      session_.arm(static_cast<c10::StorageImpl*>(value->home));
    }
    session_.engine_.unlock(*value);
  }
}

bool Session::Hold::covers(const Value* value) {
  if (!value) return here();
  for (const Hold* hold = innermost; hold; hold = hold->outer_) {
    if (std::find(hold->values_.begin(), hold->values_.end(), value) != hold->values_.end()) {
      return true;
    }
  }
  return false;
}

void Session::Hold::died(Value& value) {
  for (Hold* hold = innermost; hold; hold = hold->outer_) {
    for (Value*& held : hold->values_) {
      if (held != &value) continue;
      held = nullptr;
      hold->session_.engine_.unlock(value);
    }
  }
}

}  // namespace dtr
