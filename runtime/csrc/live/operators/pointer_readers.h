// Lists composite operators that read memory through a pointer. We intercept the operators that a
// composite operator calls, but not such a read. So of the composite operators, only these need
// kernels of ours (intercept/composites.cpp).

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>

namespace dtr {

// What a composite kernel reads through pointers.
enum class Reads {
  kIndices,  // Integers, such as lengths. Other content is read by operators that we record.
  kContent,  // Any content. No call inside is recorded: most such kernels also write by pointer.
};

// To add an operator, add its row to the table in pointer_readers.cpp. If it writes through a
// pointer, also add a row to kUndeclaredWrites (operators.cpp). The rows were found by
// perf/survey/composites.py, which calls each composite operator with every argument evicted.
struct PointerReader {
  std::string_view name;  // The operator's name, with its overload.
  Reads reads;
};
// Whether the operator has only a composite kernel. We intercept the operators that it calls.
bool is_composite(const c10::OperatorHandle& op);

// Returns the operator's row of the table, or null. An operator with a row must have no other
// kernel at kKey.
const PointerReader* pointer_reader(const c10::OperatorHandle& op);

void register_pointer_readers();  // Registers a kernel for each row (composites.cpp).

}  // namespace dtr
