#include "runtime/csrc/live/session/locks.h"

#include <optional>

#include "runtime/csrc/live/machine/python_aware_lock.h"

namespace dtr {

Turn::Turn(Locks& locks) : mutex_(locks.turn) {
  if (mutex_.try_lock()) return;
  std::optional<UnderWay::Aside> aside;
  {
    const std::lock_guard guard(locks.engine.mutex());
    aside.emplace(locks.under_way);
  }
  PythonAwareLock::wait(mutex_);
  const std::lock_guard guard(locks.engine.mutex());
  aside.reset();
}

}  // namespace dtr
