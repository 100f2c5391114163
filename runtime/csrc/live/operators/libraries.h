// Operators of other libraries: torch.library.custom_op, triton_op, C++ extensions.
//
// To run such an operator again is right only if its results depend on nothing but its arguments
// and the device's default generator. No schema says so. What rules it out, a schema does say:
// arguments that it writes, results that share memory, a list of results, other processes. What is
// left is recorded where the operator's author made a promise, pt2_compliant_tag, or the user
// vouches for it by name (`recordable`). That tag promises nothing of random numbers, so each
// recipe has the state of the generator, which is copied only where it has moved since the last. A
// result that somebody else holds as well, as a library's cache does, is a constant. Debug mode
// runs the first call of each operator twice and compares. Costs a microsecond for each call.

#pragma once

#include <ATen/core/TensorBase.h>
#include <ATen/core/function_schema.h>

#include <string>
#include <string_view>
#include <vector>

namespace dtr {

// What schemas say: whether a type is or holds tensors, what is inside a type of that kind (else the
// type itself), and whether an argument is written.
bool holds_tensors(const c10::Type& type);
const c10::Type& inside(const c10::Type& type, c10::TypeKind kind);
bool is_written(const c10::Argument& argument);

// Whether neither torch's eager mode nor we define the operator.
bool is_of_library(const c10::FunctionSchema& schema);

// Run again, it would talk to other processes again.
bool is_collective(const c10::FunctionSchema& schema);

// What in the schema keeps calls from ever being recorded, for people; null where nothing does.
const char* obstacle_of(const c10::FunctionSchema& schema);

// Whether one of the patterns names the operator: `library::name`, `library::name.overload`, or the
// begin of a name before a `*`.
bool is_named(const std::vector<std::string>& patterns, std::string_view name);

// Whether somebody besides the call's result holds the tensor or its memory. A view holds its base.
bool is_shared(const at::TensorBase& result);

}  // namespace dtr
