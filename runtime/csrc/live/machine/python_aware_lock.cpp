#include "runtime/csrc/live/machine/python_aware_lock.h"

#include <pybind11/pybind11.h>

#include <optional>

namespace dtr {

void PythonAwareLock::wait(std::recursive_mutex& mutex) {
  std::optional<pybind11::gil_scoped_release> open;
  if (PyGILState_Check()) open.emplace();
  mutex.lock();
}

}  // namespace dtr
