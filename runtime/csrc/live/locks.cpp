#include "runtime/csrc/live/locks.h"

#include <pybind11/pybind11.h>

#include <optional>

namespace dtr {

Session::Turn::Turn(Session& session) : mutex_(session.turn_) {
  if (mutex_.try_lock()) return;
  std::optional<UnderWay::Aside> aside;
  {
    const std::lock_guard guard(session.engine_.mutex());
    aside.emplace(session.under_way_);
  }
  wait();
  const std::lock_guard guard(session.engine_.mutex());
  aside.reset();
}

void Session::Turn::wait() {
  std::optional<pybind11::gil_scoped_release> open;
  if (PyGILState_Check()) open.emplace();
  mutex_.lock();
}

}  // namespace dtr
