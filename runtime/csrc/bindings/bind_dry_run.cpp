// Python's view of the engine without tensors.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "runtime/csrc/simulator/dry_run.h"

namespace py = pybind11;

namespace dtr {

void bind_dry_run(py::module_& m) {
  py::class_<EngineStats>(m, "EngineStats")
      .def_readonly("evictions", &EngineStats::evictions)
      .def_readonly("rematerializations", &EngineStats::rematerializations)
      .def_readonly("values", &EngineStats::values)
      .def_readonly("ops", &EngineStats::ops)
      .def_readonly("classes", &EngineStats::classes)
      .def_readonly("evictable", &EngineStats::evictable)
      .def_readonly("clock", &EngineStats::clock)
      .def_readonly("base_cost", &EngineStats::base_cost)
      .def_readonly("remat_cost", &EngineStats::remat_cost);

  py::class_<DryRun>(m, "DryRun")
      .def(py::init<Bytes, const Heuristic&, const std::string&>(), py::arg("budget"),
           py::arg("heuristic"), py::arg("image") = "")
      .def("constant", &DryRun::constant, py::arg("size"), py::arg("content"))
      .def("call", &DryRun::call, py::arg("name"), py::arg("cost"), py::arg("inputs"),
           py::arg("written"), py::arg("results"))
      .def("drop", &DryRun::drop)
      .def("read", &DryRun::read)
      .def("evict", &DryRun::evict)
      .def("freeze", &DryRun::freeze)
      .def("cut_history", &DryRun::cut_history)
      .def("commit", &DryRun::commit)
      .def("resident", &DryRun::resident)
      .def("window", &DryRun::window)
      .def("time_window", &DryRun::time_window)
      .def("stats", &DryRun::stats)
      .def_property_readonly("device_choices", &DryRun::device_choices)
      .def_property_readonly("live_bytes", [](const DryRun& run) { return run.pool_stats().live; })
      .def_property_readonly("peak_bytes", [](const DryRun& run) { return run.pool_stats().peak; })
      .def("take_evicted", &DryRun::take_evicted)
      .def("check", &DryRun::check)
      .def_static("content_of", &DryRun::content_of);
}

}  // namespace dtr
