// Whether this thread runs a backward pass.

#pragma once

#include <c10/macros/Export.h>

namespace torch::autograd {
// -1 outside a backward pass. Declared here, since torch's header costs 20 s to compile.
TORCH_API int get_current_graph_task_id();
}  // namespace torch::autograd

namespace dtr {

inline bool in_backward() { return torch::autograd::get_current_graph_task_id() >= 0; }

}  // namespace dtr
