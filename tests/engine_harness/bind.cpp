// The compiled module of build.py: Python's view of the engine without tensors. Heuristics are
// those of `dtr_alloc._core`, which must therefore be loaded.

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "runtime/csrc/bindings/nanos_caster.h"
#include "runtime/csrc/live/machine/thrash_watch.h"
#include "tests/engine_harness/engine_harness.h"

namespace py = pybind11;

namespace dtr {
void bind_host_tier(py::module_& m);
void bind_score_columns(py::module_& m);
}  // namespace dtr

PYBIND11_MODULE(_engine_harness, m) {
  using namespace dtr;
  py::module_::import("dtr_alloc._core");

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

  py::class_<EngineHarness>(m, "EngineHarness")
      .def(py::init([](Bytes budget, const Heuristic& heuristic, std::string image, Bytes spare,
                       Bytes page, std::optional<Nanos> page_price) {
             EngineHarness::Options options{std::move(image), spare, page, page_price};
             return std::make_unique<EngineHarness>(budget, heuristic, options);
           }),
           py::arg("budget"), py::arg("heuristic"), py::arg("image") = "", py::arg("spare") = 0,
           py::arg("page") = kGranule, py::arg("page_price") = std::nullopt)
      .def("constant", &EngineHarness::constant, py::arg("size"), py::arg("content"))
      .def("call", &EngineHarness::call, py::arg("name"), py::arg("cost"), py::arg("inputs"),
           py::arg("written"), py::arg("results"),
           py::arg("dropped") = std::vector<std::uint32_t>{})
      .def("drop", &EngineHarness::drop)
      .def("read", &EngineHarness::read)
      .def("evict", &EngineHarness::evict)
      .def("freeze", &EngineHarness::freeze)
      .def("cut_history", &EngineHarness::cut_history)
      .def("commit", &EngineHarness::commit)
      .def("fail_allocation", &EngineHarness::fail_allocation)
      .def("fail_replay", &EngineHarness::fail_replay)
      .def("resident", &EngineHarness::resident)
      .def("offset", &EngineHarness::offset)
      .def("place", &EngineHarness::place, py::arg("size"), py::arg("high"))
      .def("window", &EngineHarness::window)
      .def("time_window", &EngineHarness::time_window)
      .def("stats", &EngineHarness::stats)
      .def_property_readonly("device_choices", &EngineHarness::device_choices)
      .def_property_readonly("live_bytes",
                             [](const EngineHarness& run) { return run.pool_stats().live; })
      .def_property_readonly("peak_bytes",
                             [](const EngineHarness& run) { return run.pool_stats().peak; })
      .def("take_evicted", &EngineHarness::take_evicted)
      .def("check", &EngineHarness::check)
      .def_static("content_of", &EngineHarness::content_of);

  // Whether so many nanoseconds, told after `meanwhile` in one window, are too much recomputing.
  m.def("thrashes",
        [](bool on_host, Nanos computed, Nanos recomputed, const std::function<void()>& meanwhile) {
          ThrashWatch watch(100, on_host);
          meanwhile();
          for (int each = 0; each < 100; ++each) watch.computed(to_ticks(computed) / 100);
          watch.recomputed(to_ticks(recomputed));
          return watch.exceeded().has_value();
        });

  bind_host_tier(m);
  bind_score_columns(m);
}
