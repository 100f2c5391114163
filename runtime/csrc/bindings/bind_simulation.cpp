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
  Column tensor_size, tensor_alias, op_cost, op_constant, op_together, op_args_begin, op_args,
      op_results_begin, kind, operand, tensor_tracked, tensor_in_place, tensor_block,
      op_events_begin, event_kind, event_value;

  Schedule view() const {
    const auto view = [](const Column& column) {
      return std::span<const std::int64_t>(column.data(), static_cast<std::size_t>(column.size()));
    };
    return {.tensor_size = view(tensor_size),
            .tensor_alias = view(tensor_alias),
            .op_cost = view(op_cost),
            .op_constant = view(op_constant),
            .op_together = view(op_together),
            .op_args_begin = view(op_args_begin),
            .op_args = view(op_args),
            .op_results_begin = view(op_results_begin),
            .kind = view(kind),
            .operand = view(operand),
            .tensor_tracked = view(tensor_tracked),
            .tensor_in_place = view(tensor_in_place),
            .tensor_block = view(tensor_block),
            .op_events_begin = view(op_events_begin),
            .event_kind = view(event_kind),
            .event_value = view(event_value)};
  }
};

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
      .def(py::init<Column, Column, Column, Column, Column, Column, Column, Column, Column, Column,
                    Column, Column, Column, Column, Column, Column>(),
           py::kw_only(), "tensor_size"_a, "tensor_alias"_a, "op_cost"_a, "op_constant"_a,
           "op_together"_a, "op_args_begin"_a, "op_args"_a, "op_results_begin"_a, "kind"_a,
           "operand"_a, "tensor_tracked"_a, "tensor_in_place"_a, "tensor_block"_a,
           "op_events_begin"_a, "event_kind"_a, "event_value"_a)
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
