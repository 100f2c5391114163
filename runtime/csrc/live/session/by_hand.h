// Serves what a program asks of a session by hand: to evict a tensor, to bring it back, to keep it
// in memory, or to hand its memory out to code that we do not see. `tensor` may be any; untracked
// tensors count as resident constants.

#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/csrc/live/storages/constants.h"

namespace dtr {

class Session;

bool evict(Session& session, const at::Tensor& tensor);  // Returns whether it evicted.
void materialize(Session& session, const at::Tensor& tensor);
void pin(Session& session, const at::Tensor& tensor);  // Resident, and never evicted again.
bool is_evicted(Session& session, const at::Tensor& tensor);
// Call before memory is handed out to code whose writes we do not see: makes the tensor an ordinary
// one, and keeps its content for recipes that read it. Returns the bytes that this took. Does
// nothing inside an operator, unless the tensor is evicted.
Constants::Kept expose(Session& session, const at::Tensor& tensor);
Constants::Kept expose(Session& session, c10::StorageImpl& storage);
Constants::Kept hand_out(Session& session, c10::StorageImpl& storage, Lock& lock);
// A library frees the content of a tensor, a parameter, and restores it later: constants.h.
void content_goes(Session& session, const at::Tensor& tensor, Constants::Stays stays);
void content_is_back(Session& session, const at::Tensor& tensor);

}  // namespace dtr
