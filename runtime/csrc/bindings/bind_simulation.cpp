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

// Keeps the columns alive for as long as something looks at them.
struct ScheduleColumns {
#define DTR_COLUMN(name) Column name;
  DTR_SCHEDULE_COLUMNS(DTR_COLUMN)
#undef DTR_COLUMN

  explicit ScheduleColumns(const py::kwargs& given) {
#define DTR_COLUMN(name)                                                                  \
  if (!given.contains(#name)) throw py::type_error("a schedule needs the column " #name); \
  name = given[#name].cast<Column>();
    DTR_SCHEDULE_COLUMNS(DTR_COLUMN)
#undef DTR_COLUMN
  }

  Schedule view() const {
    Schedule schedule;
#define DTR_COLUMN(name) schedule.name = {name.data(), static_cast<std::size_t>(name.size())};
    DTR_SCHEDULE_COLUMNS(DTR_COLUMN)
#undef DTR_COLUMN
    return schedule;
  }
};

py::dict numbered(std::initializer_list<const char*> names) {
  py::dict numbers;
  for (const char* name : names) numbers[name] = py::len(numbers);
  return numbers;
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
#define DTR_COUNT(type, name) result[#name] = counts.name;
  DTR_SIMULATION_COUNTS(DTR_COUNT)
#undef DTR_COUNT
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
#define DTR_NAME(name) #name,
  m.attr("RECORD_KINDS") = numbered({DTR_RECORD_KINDS(DTR_NAME)});
  m.attr("MEMORY_EVENTS") = numbered({DTR_MEMORY_EVENTS(DTR_NAME)});
  m.attr("STEP_KINDS") = numbered({DTR_STEP_KINDS(DTR_NAME)});
  m.attr("SCHEDULE_COLUMNS") = py::list(numbered({DTR_SCHEDULE_COLUMNS(DTR_NAME)}));
#undef DTR_NAME
  py::class_<ScheduleColumns>(m, "Schedule")
      .def(py::init<const py::kwargs&>())
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
          options.prices = make_host_arena(usual_addresses(budget))->move_prices();
        }
        if (pool) return result_of<LiveSimulation>(schedule.view(), options);
        return result_of<PaperSimulation>(schedule.view(), options);
      },
      py::kw_only(), "schedule"_a, "budget"_a, "pool"_a, "heuristic"_a, "policy"_a, "remat_limit"_a,
      "remap"_a, "move_ns"_a, "measured_prices"_a, "placement"_a, "layouts"_a, "logical_clock"_a,
      "pin_outputs"_a, "log_events"_a, "link"_a, "leaving"_a);
}

}  // namespace dtr
