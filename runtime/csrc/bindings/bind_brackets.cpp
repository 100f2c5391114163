// What Python begins and must end: scopes, threads that join them, loans of budget.
//
// A handler of a signal may raise between any two steps of Python code, in a `finally` as well, and
// in the first line of `__exit__`. What was begun would then stay for ever. So `__enter__` and
// `__exit__` are here, where no handler runs: where what Python does raises anything, the end is
// called, and called again until it has come through. The end of a bracket in Python is a row of
// steps that may each be repeated. What changes the state of a session is one call, which knows
// whether it was done. The error that came first is raised in the end. Costs a call of a function.

#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <utility>

#include "runtime/csrc/live/session/session.h"

namespace py = pybind11;

namespace dtr {
namespace {

// Calls `end` until it returns. A step that always raises must not keep us here.
template <class End>
void to_the_end(const End& end, std::optional<py::error_already_set> first = {}) {
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    try {
      end();
      break;
    } catch (py::error_already_set& error) {
      if (!first) first = error;
    }
  }
  if (first) throw py::error_already_set(*first);
}

// A context manager that is used once. Python's classes define `_begin()`, which returns what `as`
// gets, and `_end(error)`, where `error` is the body's, or why it did not begin.
struct Bracket {
  std::string name, made_by;  // For errors: "a {name} is used once: call {made_by} again".
  bool begun = false;
};

py::object begin(const py::object& self) {
  auto& bracket = self.cast<Bracket&>();
  if (bracket.begun) {
    throw std::runtime_error("this " + bracket.name + " was entered before, and a " + bracket.name +
                             " is used once: call " + bracket.made_by + " again");
  }
  bracket.begun = true;
  try {
    return self.attr("_begin")();
  } catch (py::error_already_set& error) {
    bracket.begun = false;
    to_the_end([&] { self.attr("_end")(error.value()); }, error);
    throw;
  }
}

void end(const py::object& self, const py::object& /*kind*/, const py::object& error,
         const py::object& /*trace*/) {
  if (const auto& bracket = self.cast<Bracket&>(); !bracket.begun) {
    throw std::runtime_error("this " + bracket.name + " was not entered, so it cannot be left");
  }
  to_the_end([&] { self.attr("_end")(error); });
}

// A thread that joins a scope, from join() to part().
struct Member {
  Session& session;
  bool joined = false;
};

// Of the budget, from take() to give_back().
struct Loan {
  Session& session;
  Bytes taken = 0;
};

}  // namespace

void bind_brackets(py::module_& m) {
  using Open = py::call_guard<py::gil_scoped_release>;
  py::class_<Bracket>(m, "Bracket")
      .def(py::init([](std::string name, std::string made_by) {
             return Bracket{std::move(name), std::move(made_by)};
           }),
           py::arg("name"), py::arg("made_by"))
      .def("__enter__", &begin)
      .def("__exit__", &end, py::arg("kind"), py::arg("error"), py::arg("trace"));

  // What comes after `first` comes if that returned.
  m.def(
      "then_to_the_end",
      [](const py::function& first, const py::function& end) {
        first();
        to_the_end(end);
      },
      py::arg("first"), py::arg("end"));

  // As by `with lock:`, whose end may be interrupted before the lock is given back.
  m.def(
      "locked",
      [](const py::object& lock, const py::function& run) {
        lock.attr("acquire")();
        try {
          run();
        } catch (...) {
          lock.attr("release")();
          throw;
        }
        lock.attr("release")();
      },
      py::arg("lock"), py::arg("run"));

  py::class_<Member>(m, "Member")
      .def(py::init([](Session& session) { return Member{session}; }), py::keep_alive<1, 2>())
      .def(
          "join",
          [](Member& self) {
            self.session.scope().join();
            self.joined = true;
          },
          Open())
      .def(
          "part",
          [](Member& self, bool here) {
            if (std::exchange(self.joined, false)) self.session.scope().part(here);
          },
          py::arg("here"), Open());

  py::class_<Loan>(m, "Loan")
      .def(py::init([](Session& session) { return Loan{session}; }), py::keep_alive<1, 2>())
      .def(
          "take",
          [](Loan& self, Bytes bytes) {
            self.session.requests().lend(bytes);
            self.taken = bytes;
          },
          py::arg("bytes"), Open())
      .def(
          "give_back",
          [](Loan& self) {
            self.session.requests().lend(-self.taken);
            self.taken = 0;
          },
          Open());
}

}  // namespace dtr
