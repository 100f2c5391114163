// Examines operators of other libraries: torch.library.custom_op, triton_op, C++ extensions.
//
// Such an operator may run again only if its results depend on nothing but its arguments and the
// device's default generator. No schema promises this, but some schemas rule it out: by written
// arguments, results that share memory, a list of results, or a process group. Any other operator
// is recorded if its author gave it pt2_compliant_tag, or if the user names it in `recordable`. The
// tag promises nothing about random numbers, so each recipe keeps the generator's state, copied
// only if it changed since the last copy. A result that other code holds, too, such as an entry of
// a library's cache, is a constant. All this takes 1 us a call. Debug mode also runs an operator
// twice at its first call, and at much larger calls later, and throws if the results differ.

#pragma once

#include <ATen/core/TensorBase.h>
#include <ATen/core/function_schema.h>

#include <string>
#include <string_view>
#include <vector>

namespace dtr {

// holds_tensors(): whether the type is or contains tensors. inside(): what a type of `kind`, such
// as Optional, contains; else `type` itself. is_written(): whether the argument is written.
bool holds_tensors(const c10::Type& type);
const c10::Type& inside(const c10::Type& type, c10::TypeKind kind);
bool is_written(const c10::Argument& argument);

// Whether the operator is neither torch's own (aten) nor ours (dtr_alloc).
bool is_of_library(const c10::FunctionSchema& schema);

// Whether the operator talks to other processes. A replay would talk to them again.
bool is_collective(const c10::FunctionSchema& schema);

// Says in a text for users why calls of this schema are never recorded; null if some may be.
const char* obstacle_of(const c10::FunctionSchema& schema);

// Whether a pattern names the operator. A pattern is `library::name`, `library::name.overload`, or
// the start of a name and a `*`.
bool is_named(const std::vector<std::string>& patterns, std::string_view name);

// Whether others than the caller hold the result or its memory. A view's own base does not count.
bool is_shared(const at::TensorBase& result);

}  // namespace dtr
