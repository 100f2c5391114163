// Python's view of the live runtime: sessions, by-hand control, and what the optimizer hooks call.

#include <pybind11/numpy.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "runtime/csrc/bindings/nanos_caster.h"
#include "runtime/csrc/live/intercept/dispatch_key.h"
#include "runtime/csrc/live/intercept/interception.h"
#include "runtime/csrc/live/machine/fake_mode.h"
#include "runtime/csrc/live/machine/guest_memory.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/operators/libraries.h"
#include "runtime/csrc/live/operators/operators.h"
#include "runtime/csrc/live/operators/pointer_readers.h"
#include "runtime/csrc/live/session/by_hand.h"
#include "runtime/csrc/live/session/cpu_allocator.h"
#include "runtime/csrc/live/session/hold.h"
#include "runtime/csrc/live/session/named_options.h"
#include "runtime/csrc/live/session/session.h"

namespace py = pybind11;

namespace dtr {

#ifdef DTR_TORCH_CUDA
// For tests: host memory of a CUDA allocator that stands in for torch's (live_cuda/bind_guest.cpp).
Memory::Handle memory_over(std::uintptr_t native, Bytes budget);
c10::DeleterFnPtr deleter_of(std::uintptr_t native);
#endif

namespace {

// Lives as long as the process: errors are raised until its end.
py::function* advise = nullptr;
py::function* locator = nullptr;

std::string advice(Bytes at_least) {
  py::gil_scoped_acquire gil;
  try {
    return py::cast<std::string>((*advise)(at_least));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;  // Ctrl-C, which nothing may swallow.
    error.discard_as_unraisable("an advice of dtr_alloc");
    return "";
  }
}

// A method of a part of a session, as one of the session's.
template <typename Part, typename Result, typename... Arguments>
auto in(Part& (Session::*part)(), Result (Part::*method)(Arguments...)) {
  return [part, method](Session& session, Arguments... arguments) {
    return ((session.*part)().*method)(std::move(arguments)...);
  };
}
template <typename Part, typename Result>
auto in(Part& (Session::*part)(), Result (Part::*method)() const) {
  return [part, method](Session& session) { return ((session.*part)().*method)(); };
}

// The error is on its way out of an operator, and none of our locks is held: who waits for a turn
// has given Python's lock away (PythonAwareLock).
void advise_by(const py::function& function) {
  advise = new py::function(function);
  set_adviser(&advice);
}

// Runs compiled code that is given `tensors`, of which it writes those at `written`. `code`: its
// name.
py::object holding(Session& session, const py::sequence& tensors,
                   const std::vector<std::size_t>& written, bool backward, std::uint64_t code,
                   const py::function& run) {
  std::unique_ptr<Hold> hold;
  {  // The code lets its arguments go as it runs: nobody else may keep them.
    std::vector<at::Tensor> read, changed;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      py::object tensor = tensors[i];
      if (!THPVariable_Check(tensor.ptr())) continue;
      bool changes = std::find(written.begin(), written.end(), i) != written.end();
      (changes ? changed : read).push_back(THPVariable_Unpack(tensor.ptr()));
    }
    py::gil_scoped_release open;
    hold = std::make_unique<Hold>(session, code, read, changed);
  }
  py::object made = run();
  hold->ended();
  if (!backward) return made;
  for (py::handle result : made) {
    if (THPVariable_Check(result.ptr())) hold->returned(THPVariable_Unpack(result.ptr()));
  }
  return made;
}

// A call of the program's own sets the key again that somebody else has cleared.
struct KeepRecording {
  KeepRecording() { Scope::keep_recording(); }
};

EventLog::Site locate() {
  py::gil_scoped_acquire gil;
  return py::cast<EventLog::Site>((*locator)());
}

py::tuple row_of(const EventLog::Event& event) {
  constexpr const char* kKinds[] = {"allocated", "freed",      "evicted",     "evictable",
                                    "constant",  "recomputed", "swapped out", "swapped in",
                                    "step",      "refused"};
  constexpr const char* kPhases[] = {"forward", "backward", "optimizer"};
  const EventLog::Cause& cause = event.cause;
  return py::make_tuple(kKinds[static_cast<int>(event.kind)], event.at, event.duration,
                        cause.made_by ? cause.made_by->name : "", cause.site,
                        kPhases[static_cast<int>(cause.phase)], cause.again,
                        reinterpret_cast<std::uintptr_t>(event.data), event.size);
}

py::array_t<std::int64_t> array_of(const std::vector<std::int64_t>& numbers) {
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(numbers.size()), numbers.data());
}

}  // namespace

void bind_session(py::module_& m) {
  register_pointer_readers();
  register_interception();
  install_cpu_allocator();
  m.attr("sees_raw_access") = kSeesRawAccess;

  py::class_<SessionStats> stats(m, "SessionStats");
#define DTR_READ(type, name, value) stats.def_readonly(#name, &SessionStats::name);
  DTR_SESSION_STATS(DTR_READ)
#undef DTR_READ

  py::enum_<SessionTrace::Watch>(m, "Watch")
      .value("off", SessionTrace::Watch::kOff)
      .value("on", SessionTrace::Watch::kOn)
      .value("over", SessionTrace::Watch::kOver)
      .value("threads", SessionTrace::Watch::kThreads)
      .value("long", SessionTrace::Watch::kLong)
      .value("traced", SessionTrace::Watch::kTraced);

  py::enum_<Constants::Stays>(m, "Stays")
      .value("nothing", Constants::Stays::kNothing)
      .value("since_it_came", Constants::Stays::kSinceItCame)
      .value("all", Constants::Stays::kAll);

  using Open = py::call_guard<KeepRecording, py::gil_scoped_release>;
  py::class_<Reading>(m, "Reading");
  py::class_<Session>(m, "Session")
      // `guest`: memory is torch's, on the host. `native`: the address of a CUDA allocator whose
      // memory it is; 0: none.
      .def(py::init([](bool guest, std::uintptr_t native, const py::kwargs& given) {
             const SessionOptions options = options_of(given);
             SessionDevice device = host_device(options.on_cuda);
#ifdef DTR_TORCH_CUDA
             if (native) {
               device.deleter = deleter_of(native);
               return std::make_unique<Session>(options, std::move(device),
                                                memory_over(native, options.limit()));
             }
#endif
             TORCH_CHECK(!native, "this build has no CUDA");
             Memory::Handle memory =
                 guest ? GuestMemory::create(ordinary_cpu_allocator(), options.limit())
                       : pool_for(options);
             return std::make_unique<Session>(options, std::move(device), std::move(memory));
           }),
           py::kw_only(), py::arg("guest") = false, py::arg("native") = 0)
      .def("enter", in(&Session::scope, &Scope::enter))
      .def("leave",
           [](const py::object& self) {
             Scope& scope = self.cast<Session&>().scope();
             try {
               py::gil_scoped_release open;
               const Scope::Left left = scope.leave();
               return std::pair(left.spilled, left.beyond);
             } catch (...) {
               self.inc_ref();  // For ever: tensors still lead to it.
               throw;
             }
           })
      .def("evict", &evict, Open())
      .def("materialize", &materialize, Open())
      .def("pin", &pin, Open())
      .def(
          "expose",
          [](Session& session, const at::Tensor& tensor) {
            Constants::Kept exposure = expose(session, tensor);
            return std::make_pair(exposure.copied, exposure.kept);
          },
          Open())
      .def("content_goes", &content_goes, Open())
      .def("content_is_back", &content_is_back, Open())
      .def("note_exposure", in(&Session::notes, &Notes::note_exposure))
      .def("exposures", in(&Session::notes, &Notes::exposures))
      .def("note_stayed", in(&Session::notes, &Notes::note_stayed))
      .def("stayed", in(&Session::notes, &Notes::stayed))
      .def("caught", in(&Session::notes, &Notes::caught))
      .def("unseen", in(&Session::notes, &Notes::unseen))
      .def("take_untold", in(&Session::notes, &Notes::take_untold))
      .def(
          "reading",
          [](Session& session, const at::Tensor& tensor) {
            return std::make_unique<Reading>(session, tensor);
          },
          Open(), py::keep_alive<0, 1>())
      .def("holding", &holding)
      .def("is_evicted", &is_evicted)
      .def("commit", in(&Session::scope, &Scope::commit), Open())
      .def("bring_back_for_child", in(&Session::scope, &Scope::bring_back_for_child), Open())
      .def("watch", &Session::watch, Open())
      .def("seen",
           [](const Session& session) {
             const SessionTrace::Seen seen = session.seen();
             return py::make_tuple(array_of(seen.records.records), seen.records.operators,
                                   seen.steps, seen.watch);
           })
      .def("heuristic", [](Session& session) { return session.options().heuristic; })
      .def(
          "step",
          [](Session& session) {
            using Costs = std::pair<Bytes, Nanos>;
            const std::optional<StepCosts> costs = session.step();
            return costs ? std::optional(Costs(costs->evicted, costs->added)) : std::nullopt;
          },
          Open())
      .def("fail_allocation", in(&Session::requests, &MemoryRequests::fail_allocation))
      .def("abandon_in_child", in(&Session::scope, &Scope::abandon_in_child))
      .def("start_trace", &Session::start_trace, Open())
      .def("take_trace",
           [](Session& session) {
             TraceRecorder::Records records = session.take_trace();
             return py::make_tuple(array_of(records.records), records.operators,
                                   array_of(records.evictions));
           })
      .def("stats", &Session::stats)
      .def("pool_stats", in(&Session::memory, &Memory::stats))
      .def("has_budget", [](Session& self) { return self.options().budget > 0; })
      .def("largest_budget", in(&Session::memory, &Memory::largest_budget))
      .def("reset_peak", in(&Session::memory, &Memory::reset_peak))
      .def("timeline", &Session::timeline)
      .def("events",
           [](Session& session) -> std::optional<std::pair<py::list, std::int64_t>> {
             if (!session.events().keeps()) return std::nullopt;
             const EventLog::Kept kept = session.events().kept();
             py::list rows;
             for (const EventLog::Event& event : kept.events) rows.append(row_of(event));
             return std::pair(rows, kept.dropped);
           })
      .def("resize", in(&Session::requests, &MemoryRequests::resize), Open())
      .def("give_back", in(&Session::requests, &MemoryRequests::give_back), Open())
      .def("check", &Session::check);
  m.def("set_adviser", &advise_by);
  m.def("set_locator", [](const py::function& function) {
    locator = new py::function(function);
    EventLog::locate_by(&locate);
  });
  m.def(
      "obstacle",
      [](const std::string& name, const std::string& overload) -> std::optional<std::string> {
        const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
        const char* obstacle = op ? operator_info(*op).obstacle : nullptr;
        return obstacle ? std::optional<std::string>(obstacle) : std::nullopt;
      },
      py::arg("name"), py::arg("overload"));
  m.def(
      "is_collective",
      [](const std::string& name, const std::string& overload) {
        const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
        return op && is_collective(op->schema());
      },
      py::arg("name"), py::arg("overload"));
  m.def("record_this_thread", &Scope::record_this_thread);
  m.attr("dispatch_key") = static_cast<int>(kKey);
  m.attr("sees_inside_handlers") = kKey < c10::DispatchKey::Python;
  m.def("records_this_thread", &Scope::records_this_thread);
  m.def("is_member", &Scope::is_member);
  m.def("in_operator", [] { return InOperator::state.depth > 0; });
  m.def("fake_mode_is_on", &fake_mode_is_on);
  m.def("take_key", &take_key, py::call_guard<py::gil_scoped_release>());
  m.def("lingering_session", []() -> py::object {
    Session* session = Scope::active();
    if (!session || !session->scope().lingering()) return py::none();
    return py::cast(session, py::return_value_policy::reference);
  });
  m.def("set_host_stream", &set_host_stream);
  m.def("set_in_optimizer", &set_in_optimizer);
  m.def("switches", &Switches::names);
  m.def("refuse_switch", &Switches::refuse);
}

}  // namespace dtr
