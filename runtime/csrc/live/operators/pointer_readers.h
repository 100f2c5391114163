// Lists composite operators that read memory through a pointer. Composite operators are made of
// other operators, which we intercept, so only these need kernels of ours
// (intercept/composites.cpp).

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>

namespace dtr {

// What a composite kernel reads through pointers.
enum class Reads {
  kIndices,  // Integers: split points, lengths. All else is read by operators, which are recorded.
  kContent,  // Anything. Nothing is recorded: such a kernel mostly writes through pointers, too.
};

// To add an operator, add its row to the table in pointer_readers.cpp. If it writes through a
// pointer, also add a row to kUndeclaredWrites (operators.cpp). The rows were found by
// perf/survey/composites.py, which calls each composite operator with every argument evicted.
struct PointerReader {
  std::string_view name;  // With its overload.
  Reads reads;
};
// Whether the operator is made of other operators, all of which we intercept.
bool is_composite(const c10::OperatorHandle& op);

// The operator's row of the table; null if none. No other kernel may be registered at our key for
// an operator with a row.
const PointerReader* pointer_reader(const c10::OperatorHandle& op);

void register_pointer_readers();  // Our kernels for all rows: composites.cpp.

}  // namespace dtr
