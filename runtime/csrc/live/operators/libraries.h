// Examines operators of other libraries: torch.library.custom_op, triton_op, C++ extensions.
//
// Such an operator may run again only if its results depend on nothing but its arguments and the
// device's default generator. No schema says so, but a schema shows what rules it out: written
// arguments, results that share memory, a list of results, other processes. The remaining operators
// are recorded if their author promised it (pt2_compliant_tag), or if the user vouches for them by
// name (`recordable`). That tag promises nothing about random numbers, so each recipe has the state
// of the generator, which is copied only if it has changed since the last copy. A result that other
// code holds, too, such as a library's cache, is a constant. Debug mode runs the first call of each
// operator, and much larger ones, twice and compares. Costs a microsecond for each call.

#pragma once

#include <ATen/core/TensorBase.h>
#include <ATen/core/function_schema.h>

#include <string>
#include <string_view>
#include <vector>

namespace dtr {

// From schemas: whether a type is or holds tensors; the type inside a type of this kind (else the
// type itself); whether an argument is written.
bool holds_tensors(const c10::Type& type);
const c10::Type& inside(const c10::Type& type, c10::TypeKind kind);
bool is_written(const c10::Argument& argument);

// Whether neither torch's eager mode nor we define the operator.
bool is_of_library(const c10::FunctionSchema& schema);

// Whether it talks to other processes, as it would again in a replay.
bool is_collective(const c10::FunctionSchema& schema);

// Why calls of this schema are never recorded, as a text for users; null if they may be.
const char* obstacle_of(const c10::FunctionSchema& schema);

// Whether one of the patterns names the operator: `library::name`, `library::name.overload`, or the
// start of a name before a `*`.
bool is_named(const std::vector<std::string>& patterns, std::string_view name);

// Whether somebody besides the call's result holds the tensor or its memory. A view holds its base.
bool is_shared(const at::TensorBase& result);

}  // namespace dtr
