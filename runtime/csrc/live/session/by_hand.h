// Serves what a program asks of a session by hand: to evict a tensor, to bring it back, to keep it
// in memory, or to give its memory to code that we do not see. A tensor that is not tracked counts
// as a resident constant.

#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/csrc/live/storages/constants.h"

namespace dtr {

class Session;

bool evict(Session& session, const at::Tensor& tensor);  // Returns whether it evicted the tensor.
void materialize(Session& session, const at::Tensor& tensor);
void pin(Session& session, const at::Tensor& tensor);  // Keeps it resident for good.
bool is_evicted(Session& session, const at::Tensor& tensor);
// Call before memory is given to code whose writes we do not see. Makes the tensor an ordinary one,
// keeps its content for recipes that read it, and returns the bytes of copies and of kept tensors.
// Does nothing inside an operator, unless the tensor is evicted.
Constants::Kept expose(Session& session, const at::Tensor& tensor);
Constants::Kept expose(Session& session, c10::StorageImpl& storage);
Constants::Kept hand_out(Session& session, c10::StorageImpl& storage, Lock& lock);
// Call when a library frees a parameter's content, and when it has restored it (constants.h).
void content_goes(Session& session, const at::Tensor& tensor, Constants::Stays stays);
void content_is_back(Session& session, const at::Tensor& tensor);

}  // namespace dtr
