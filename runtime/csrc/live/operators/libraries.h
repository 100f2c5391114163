// Examines operators of other libraries: torch.library.custom_op, triton_op, C++ extensions.
//
// Such an operator may run again only if its results depend on nothing but its arguments and the
// device's default generator. No schema says so, but some schemas rule it out: by written
// arguments, results that share memory, a list of results, other processes. All other operators are
// recorded if their author promised that they can be (pt2_compliant_tag), or if the user vouches
// for them by name (`recordable`). The tag promises nothing about random numbers, so each recipe
// has the generator's state, copied only if it changed since the last copy. A result that other
// code holds, too, such as a library's cache, is a constant. Debug mode runs each operator's first
// call, and much larger ones, twice, and throws if results differ. Costs a microsecond a call.

#pragma once

#include <ATen/core/TensorBase.h>
#include <ATen/core/function_schema.h>

#include <string>
#include <string_view>
#include <vector>

namespace dtr {

// What schemas tell: whether a type is or holds tensors; the type inside a type of this kind (else
// the type itself); whether an argument is written.
bool holds_tensors(const c10::Type& type);
const c10::Type& inside(const c10::Type& type, c10::TypeKind kind);
bool is_written(const c10::Argument& argument);

// Whether the operator is neither torch's own (aten) nor ours.
bool is_of_library(const c10::FunctionSchema& schema);

// Whether the operator talks to other processes. A replay would talk to them again.
bool is_collective(const c10::FunctionSchema& schema);

// Why calls of this schema are never recorded, as a text for users; null if they may be.
const char* obstacle_of(const c10::FunctionSchema& schema);

// Whether one of the patterns names the operator: `library::name`, `library::name.overload`, or the
// start of a name before a `*`.
bool is_named(const std::vector<std::string>& patterns, std::string_view name);

// Whether anything but the caller holds the result or its memory. A view's own base does not count.
bool is_shared(const at::TensorBase& result);

}  // namespace dtr
