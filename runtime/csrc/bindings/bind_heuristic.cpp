// Python's view of the score's parameters, which runtime/heuristic.py checks.

#include <pybind11/pybind11.h>

#include "runtime/csrc/policy/device_scorer.h"
#include "runtime/csrc/policy/score.h"

namespace py = pybind11;

namespace dtr {

void bind_heuristic(py::module_& m) {
  using namespace py::literals;
  py::enum_<NeighbourhoodKind>(m, "Neighbourhood")
      .value("none", NeighbourhoodKind::kNone)
      .value("eqclass", NeighbourhoodKind::kEvictedClass)
      .value("full", NeighbourhoodKind::kFull)
      .value("ancestors", NeighbourhoodKind::kAncestors)
      .value("megengine", NeighbourhoodKind::kMegEngine);
  py::enum_<ScorerPlace>(m, "ScorerPlace")
      .value("auto", ScorerPlace::kAuto)
      .value("host", ScorerPlace::kHost)
      .value("device", ScorerPlace::kDevice);
  py::enum_<Selection>(m, "Selection")
      .value("single", Selection::kSingle)
      .value("sample", Selection::kSample)
      .value("random", Selection::kRandom)
      .value("window", Selection::kWindow);
  py::class_<Heuristic>(m, "Heuristic")
      .def(py::init([](NeighbourhoodKind neighbourhood, double cost_exp, double size_exp,
                       double staleness_exp, double fragmentation, double recompute_penalty,
                       Selection selection, Nanos epsilon, std::uint64_t seed) {
             return Heuristic{neighbourhood,     cost_exp,  size_exp, staleness_exp, fragmentation,
                              recompute_penalty, selection, epsilon,  seed};
           }),
           "neighbourhood"_a, "cost_exp"_a, "size_exp"_a, "staleness_exp"_a, "fragmentation"_a,
           "recompute_penalty"_a, "selection"_a, "epsilon"_a, "seed"_a);
}

}  // namespace dtr
