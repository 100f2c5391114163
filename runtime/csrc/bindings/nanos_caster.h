// Converts a Nanos to a Python integer of nanoseconds, and back. Include this header in each file
// that binds a function with a Nanos argument or result, or a member of type Nanos. Without it, the
// binding compiles, but throws TypeError when Python uses it.

#pragma once

#include <pybind11/pybind11.h>

#include "dtr_alloc/pool/csrc/units.h"

namespace pybind11::detail {

template <>
struct type_caster<dtr::Nanos> {
  using Number = make_caster<std::int64_t>;
  PYBIND11_TYPE_CASTER(dtr::Nanos, Number::name);

  bool load(handle from, bool convert) {
    Number number;
    if (!number.load(from, convert)) return false;
    value = dtr::Nanos{cast_op<std::int64_t>(number)};
    return true;
  }
  static handle cast(dtr::Nanos time, return_value_policy policy, handle parent) {
    return Number::cast(time.count(), policy, parent);
  }
};

}  // namespace pybind11::detail
