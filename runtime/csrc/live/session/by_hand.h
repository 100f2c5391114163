// What a program asks of a session by hand: to evict a tensor, to bring one back, to keep one in
// memory, or to hand its memory out to code that we do not see. `tensor` may be any; those that are
// not tracked are resident constants.

#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/csrc/live/storages/constants.h"

namespace dtr {

class Session;

bool evict(Session& session, const at::Tensor& tensor);  // Whether there was something to evict.
void materialize(Session& session, const at::Tensor& tensor);
void pin(Session& session, const at::Tensor& tensor);  // Resident, and never evicted again.
bool is_evicted(Session& session, const at::Tensor& tensor);
// Its memory is about to be handed out, and nobody will tell us when it is written: it is an
// ordinary tensor from now on, and recipes that read it keep what they read. Returns what that
// took. An operator's arguments are in the operator's hands: nothing happens to them.
Constants::Kept expose(Session& session, const at::Tensor& tensor);
Constants::Kept expose(Session& session, c10::StorageImpl& storage);
Constants::Kept hand_out(Session& session, c10::StorageImpl& storage, Lock& lock);
// A library takes the content of a tensor, a parameter, and brings it back: constants.h.
void content_goes(Session& session, const at::Tensor& tensor, Constants::Stays stays);
void content_is_back(Session& session, const at::Tensor& tensor);

}  // namespace dtr
