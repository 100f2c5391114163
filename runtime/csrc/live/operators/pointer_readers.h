// Operators that are made of other operators, so that the dispatcher need not show them to us, and
// those of them that read memory through a pointer all the same: the table. What is done about them
// is in intercept/composites.cpp.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>

namespace dtr {

// What a composite kernel reads through pointers.
enum class Reads {
  kIndices,  // Integers: split points, lengths. All else goes through operators, which are recorded.
  kContent,  // Anything. Nothing is recorded: what it makes, it mostly fills through a pointer.
};

// To add an operator, add its row to the table in pointer_readers.cpp. What it writes through a
// pointer is a row of kUndeclaredWrites (operators.cpp). Found by perf/survey/composites.py, which
// calls each composite operator with every argument evicted.
struct PointerReader {
  std::string_view name;  // With its overload.
  Reads reads;
};
// Whether it is made of other operators, all of which we see.
bool is_composite(const c10::OperatorHandle& op);

// Its row of the table; null if it has none. Nothing else may be registered at our key for one that
// has.
const PointerReader* pointer_reader(const c10::OperatorHandle& op);

void register_pointer_readers();  // Our kernels of all rows: composites.cpp.

}  // namespace dtr
