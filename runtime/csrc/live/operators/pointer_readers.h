// Lists composite operators that read memory through a pointer. A composite operator calls other
// operators, which we intercept, so only the listed ones need kernels of ours
// (intercept/composites.cpp).

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>

namespace dtr {

// What a composite kernel reads through pointers.
enum class Reads {
  kIndices,  // Integers: split points, lengths. Recorded operators read all else.
  kContent,  // Anything. Nothing is recorded: such kernels mostly write by pointer, too.
};

// To add an operator, add its row to the table in pointer_readers.cpp. If it writes through a
// pointer, also add a row to kUndeclaredWrites (operators.cpp). The rows were found by
// perf/survey/composites.py, which calls each composite operator with every argument evicted.
struct PointerReader {
  std::string_view name;  // With its overload.
  Reads reads;
};
// Whether the operator only calls other operators, all of which we intercept.
bool is_composite(const c10::OperatorHandle& op);

// The operator's row of the table; null if it has none. An operator with a row must have no other
// kernel at our key.
const PointerReader* pointer_reader(const c10::OperatorHandle& op);

void register_pointer_readers();  // Kernels for all rows: composites.cpp.

}  // namespace dtr
