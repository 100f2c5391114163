// Python's warnings during a replay (live/machine/silence.h).
//
// Filters of warnings are the process's: to change them for a while would silence other threads,
// and two threads would undo each other. So one filter is added that ignores what a thread warns
// while it replays, and matches nothing else. It need not go again. A program may set filters of
// its own in front of it, so each replay of what may be in Python looks, and moves it. Python asks
// a filter's `match(text)`, of whatever class it is (Python/_warnings.c, check_matched, Python 3.10
// to 3.14). Costs a microsecond for such a replay, and a call for a warning that no filter before
// it takes.

#include <pybind11/pybind11.h>

#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/silence.h"

namespace py = pybind11;

namespace dtr {
namespace {

struct Replaying {};

py::tuple* filter = nullptr;  // Lives as long as the process.

void put_in_front() {
  py::gil_scoped_acquire gil;
  py::list filters = py::module_::import("warnings").attr("filters");
  if (!filters.empty() && filters[0].ptr() == filter->ptr()) return;
  if (filters.contains(*filter)) filters.attr("remove")(*filter);
  filters.insert(0, *filter);
}

}  // namespace

void bind_silence(py::module_& m) {
  py::class_<Replaying>(m, "Replaying")
      .def(py::init<>())
      .def("match", [](const Replaying&, py::handle) { return InOperator::state.replaying; })
      // Some programs send their filters to other processes.
      .def("__reduce__",
           [](const py::object& self) { return py::make_tuple(py::type::of(self), py::tuple()); });
  const py::handle every_category = PyExc_Warning;
  filter =
      new py::tuple(py::make_tuple("ignore", m.attr("Replaying")(), every_category, py::none(), 0));
  Silence::silence_python = &put_in_front;
}

}  // namespace dtr
