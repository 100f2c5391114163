// Reads the options of a session from the named arguments of a Python call. Every binding that
// makes a session uses this, so options.h alone lists the options.

#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "runtime/csrc/live/session/options.h"

namespace dtr {

// Throws TypeError for a name that no option has.
inline SessionOptions options_of(const pybind11::kwargs& given) {
  SessionOptions options;
  std::size_t taken = 0;
#define DTR_TAKE(type, name, initially)                                 \
  if (given.contains(#name)) {                                          \
    options.name = given[#name].cast<decltype(SessionOptions::name)>(); \
    ++taken;                                                            \
  }
  DTR_SESSION_OPTIONS(DTR_TAKE)
#undef DTR_TAKE
  if (taken < given.size()) {
    throw pybind11::type_error("a session has no option of a name given");
  }
  return options;
}

}  // namespace dtr
