// Python's view of the score's parameters. It follows the list in policy/score.h: Heuristic takes
// each parameter by its name and has each as an attribute, and SCORE_PARAMETERS tells the list to
// runtime/heuristic.py, which checks values, and to runtime/tuning/, which searches them.

#include <pybind11/pybind11.h>

#include <string>
#include <type_traits>

#include "runtime/csrc/bindings/nanos_caster.h"
#include "runtime/csrc/policy/device_scorer.h"
#include "runtime/csrc/policy/score.h"

namespace py = pybind11;

namespace dtr {
namespace {

struct ScoreParameter {
  std::string name, role, sentence;
  py::object initial;
  py::tuple names;  // Of an enumeration's values; empty for numbers.
};

// In the order of ParameterRole.
constexpr const char* kRoles[] = {"name",   "exponent",    "weight", "switch",
                                  "factor", "nanoseconds", "seed"};
static_assert(std::size(kRoles) == int(ParameterRole::kSeed) + 1);

// An enumeration's value is its name in Python.
template <typename T>
py::object to_python(T value) {
  if constexpr (std::is_enum_v<T>) {
    return py::str(kNames<T>[static_cast<std::size_t>(value)]);
  } else {
    return py::cast(value);
  }
}

template <typename T>
T from_python(py::handle given) {
  if constexpr (std::is_enum_v<T>) {
    const auto name = given.cast<std::string>();
    for (std::size_t value = 0; value < std::size(kNames<T>); ++value) {
      if (name == kNames<T>[value]) return static_cast<T>(value);
    }
    throw py::value_error("no value has the name \"" + name + "\"");
  } else {
    return given.cast<T>();
  }
}

// Missing parameters have their defaults.
Heuristic heuristic_of(const py::kwargs& given) {
  Heuristic heuristic;
  std::size_t taken = 0;
  for_each_parameter([&]<typename T>(const Parameter& parameter, T Heuristic::* member) {
    if (!given.contains(parameter.name)) return;
    ++taken;
    try {
      heuristic.*member = from_python<T>(given[parameter.name]);
    } catch (const py::cast_error&) {
      throw py::type_error(std::string(parameter.name) + " is of a wrong type");
    }
  });
  if (taken < given.size()) throw py::type_error("Heuristic has no parameter of a name given");
  return heuristic;
}

py::tuple score_parameters() {
  py::list parameters;
  for_each_parameter([&]<typename T>(const Parameter& parameter, T Heuristic::* member) {
    py::list names;
    if constexpr (std::is_enum_v<T>) {
      for (const char* name : kNames<T>) names.append(name);
    }
    parameters.append(ScoreParameter{parameter.name, kRoles[int(parameter.role)],
                                     parameter.sentence, to_python(Heuristic{}.*member),
                                     py::tuple(names)});
  });
  return py::tuple(parameters);
}

}  // namespace

void bind_heuristic(py::module_& m) {
  py::enum_<ScorerPlace>(m, "ScorerPlace")
      .value("auto", ScorerPlace::kAuto)
      .value("host", ScorerPlace::kHost)
      .value("device", ScorerPlace::kDevice);
  py::class_<ScoreParameter>(m, "ScoreParameter")
      .def_readonly("name", &ScoreParameter::name)
      .def_readonly("role", &ScoreParameter::role)
      .def_readonly("default", &ScoreParameter::initial)
      .def_readonly("names", &ScoreParameter::names)
      .def_readonly("sentence", &ScoreParameter::sentence);
  m.attr("SCORE_PARAMETERS") = score_parameters();
  py::class_<Heuristic> heuristic(m, "Heuristic");
  heuristic.def(py::init(&heuristic_of));
  for_each_parameter([&](const Parameter& parameter, auto member) {
    const auto get = [member](const Heuristic& of) { return to_python(of.*member); };
    heuristic.def_property_readonly(parameter.name, get);
  });
}

}  // namespace dtr
