#include "runtime/csrc/live/locks.h"

#include <pybind11/pybind11.h>

#include <optional>

namespace dtr {

void Session::Turn::wait() {
  std::optional<pybind11::gil_scoped_release> open;
  if (PyGILState_Check()) open.emplace();
  mutex_.lock();
}

}  // namespace dtr
