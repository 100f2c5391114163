#include "runtime/csrc/live/session/locks.h"

#include <optional>

#include "runtime/csrc/live/machine/python_aware_lock.h"

namespace dtr {

Session::Turn::Turn(Session& session) : mutex_(session.turn_) {
  if (mutex_.try_lock()) return;
  std::optional<UnderWay::Aside> aside;
  {
    const std::lock_guard guard(session.engine_.mutex());
    aside.emplace(session.under_way_);
  }
  PythonAwareLock::wait(mutex_);
  const std::lock_guard guard(session.engine_.mutex());
  aside.reset();
}

}  // namespace dtr
