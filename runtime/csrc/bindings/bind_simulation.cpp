// Python's view of the simulator: a schedule's columns go in, counts come out.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "runtime/csrc/bindings/nanos_caster.h"
#include "runtime/csrc/engine/make_room.h"
#include "runtime/csrc/simulator/live_simulation.h"
#include "runtime/csrc/simulator/paper/paper_simulation.h"

namespace py = pybind11;

namespace dtr {
namespace {

using Column = py::array_t<std::int64_t, py::array::c_style>;

// The columns of a Schedule, each once: Python gives them by these names.
#define DTR_COLUMNS(X)                                                                             \
  X(tensor_size)                                                                                   \
  X(tensor_alias)                                                                                  \
  X(op_cost)                                                                                       \
  X(op_constant) X(op_together) X(op_args_begin) X(op_args) X(op_results_begin) X(kind) X(operand) \
      X(tensor_tracked) X(tensor_in_place) X(tensor_block) X(op_events_begin) X(event_kind)        \
          X(event_value)

// Keeps the columns alive for as long as something looks at them.
struct ScheduleColumns {
#define DTR_FIELD(name) Column name;
  DTR_COLUMNS(DTR_FIELD)
#undef DTR_FIELD

  Schedule view() const {
    const auto view = [](const Column& column) {
      return std::span<const std::int64_t>(column.data(), static_cast<std::size_t>(column.size()));
    };
    Schedule schedule;
#define DTR_VIEW(name) schedule.name = view(name);
    DTR_COLUMNS(DTR_VIEW)
#undef DTR_VIEW
    return schedule;
  }
};

ScheduleColumns columns_of(const py::kwargs& given) {
  ScheduleColumns columns;
#define DTR_TAKE(name) columns.name = given[#name].cast<Column>();
  DTR_COLUMNS(DTR_TAKE)
#undef DTR_TAKE
  return columns;
}

template <typename AnySimulation>
py::dict result_of(const Schedule& schedule, const SimulationOptions& options) {
  AnySimulation simulation(schedule, options);
  SimulationStatus status;
  {
    py::gil_scoped_release open;
    status = simulation.run();
  }
  constexpr const char* kNames[] = {"ok", "oom", "thrash"};
  SimulationCounts counts = simulation.counts();
  py::dict result;
  result["status"] = kNames[static_cast<int>(status)];
  result["peak_bytes"] = counts.peak;
  result["base_compute"] = counts.base;
  result["remat_compute"] = counts.remat;
  result["evictions"] = counts.evictions;
  result["eager_evictions"] = counts.eager;
  result["rematerializations"] = counts.remats;
  result["collateral"] = counts.collateral;
  result["evaluations"] = counts.evaluations;
  result["accesses"] = counts.accesses;
  result["misses"] = counts.misses;
  result["fragmentation"] = counts.fragmentation;
  result["free_after"] = counts.free_after;
  result["evicted_bytes"] = counts.evicted_bytes;
  result["wasted_bytes"] = counts.wasted_bytes;
  result["search_ns"] = counts.search_ns;
  result["move_ns"] = counts.move_ns;
  result["swapped_out_bytes"] = counts.out;
  result["swapped_in_bytes"] = counts.in;
  result["reloads"] = counts.reloads;
  result["waited_ns"] = counts.waited;
  result["events"] =
      Column(static_cast<py::ssize_t>(simulation.events().size()), simulation.events().data());
  if constexpr (std::is_same_v<AnySimulation, LiveSimulation>) {
    const std::vector<std::int64_t>& rows = simulation.layouts();
    result["layouts"] = Column(static_cast<py::ssize_t>(rows.size()), rows.data());
  } else {
    result["layouts"] = Column(0);
  }
  return result;
}

}  // namespace

void bind_simulation(py::module_& m) {
  using namespace py::literals;
  py::class_<ScheduleColumns>(m, "Schedule")
      .def(py::init(&columns_of))
      .def("baseline", [](const ScheduleColumns& schedule) {
        PaperSimulation::Baseline sum = PaperSimulation::baseline(schedule.view());
        return py::make_tuple(sum.peak, sum.cost, sum.constants, sum.largest_operator);
      });
  py::enum_<Policy>(m, "Policy")
      .value("eager", Policy::kEager)
      .value("banish", Policy::kBanish)
      .value("ignore", Policy::kIgnore);
  py::enum_<Placement>(m, "Placement")
      .value("best_fit", Placement::kBestFit)
      .value("two_ended", Placement::kTwoEnded);
  py::enum_<Leaving>(m, "Leaving")
      .value("drop", Leaving::kDrop)
      .value("swap", Leaving::kSwap)
      .value("both", Leaving::kBoth);
  m.def(
      "simulate",
      [](const ScheduleColumns& schedule, Bytes budget, bool pool, const Heuristic& heuristic,
         Policy policy, Nanos remat_limit, bool remap, std::optional<Nanos> move_ns,
         bool measured_prices, Placement placement, std::int64_t layouts, bool logical_clock,
         bool pin_outputs, bool log_events, std::optional<std::pair<double, Nanos>> link,
         Leaving leaving) {
        // What banishing cuts out of the graph goes, and with it what knew it.
        bool forgets = policy == Policy::kBanish;
        SimulationOptions options{.budget = budget,
                                  .heuristic = heuristic,
                                  .policy = policy,
                                  .free_views = forgets,
                                  .records = forgets ? KeepRecords::kNeeded : KeepRecords::kAll,
                                  .remat_limit = remat_limit,
                                  .remap = remap,
                                  .placement = placement,
                                  .layouts = layouts,
                                  .logical_clock = logical_clock,
                                  .pin_outputs = pin_outputs,
                                  .log_events = log_events,
                                  .leaving = leaving};
        if (link) options.link = Transfer{2 * link->first, 2 * link->second, kSmallestMoved};
        if (move_ns) options.prices = {.call = 0ns, .page = *move_ns};
        if (measured_prices) {
          options.prices = make_host_arena(scope_addresses(budget))->move_prices();
        }
        if (pool) return result_of<LiveSimulation>(schedule.view(), options);
        return result_of<PaperSimulation>(schedule.view(), options);
      },
      py::kw_only(), "schedule"_a, "budget"_a, "pool"_a, "heuristic"_a, "policy"_a, "remat_limit"_a,
      "remap"_a, "move_ns"_a, "measured_prices"_a, "placement"_a, "layouts"_a, "logical_clock"_a,
      "pin_outputs"_a, "log_events"_a, "link"_a, "leaving"_a);
}

}  // namespace dtr
