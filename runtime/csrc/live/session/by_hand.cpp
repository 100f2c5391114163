#include "runtime/csrc/live/session/by_hand.h"

#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/session/hold.h"
#include "runtime/csrc/live/session/locks.h"
#include "runtime/csrc/live/session/session.h"
#include "runtime/csrc/live/session/session_swap.h"

namespace dtr {

bool evict(Session& session, const at::Tensor& tensor) {
  Guard guard(session.locks());
  Value* value = StorageTable::value_of(tensor);
  if (!value || !value->resident() || value->locks) return false;
  session.engine().evict(*value);
  return true;
}

void materialize(Session& session, const at::Tensor& tensor) {
  Guard guard(session.locks());
  Value* value = StorageTable::value_of(tensor);
  if (value && !value->resident()) session.bring_back(*value, guard.lock());
}

// In its turn: an operator that writes the tensor must not find it pinned half-way.
void pin(Session& session, const at::Tensor& tensor) {
  Turn turn(session.locks());
  Guard guard(session.locks());
  Value* value = StorageTable::value_of(tensor);
  if (value && !value->resident()) session.bring_back(*value, guard.lock());
  value = StorageTable::value_of(tensor);
  if (value && value->resident()) session.engine().freeze(*value);
}

Constants::Kept expose(Session& session, const at::Tensor& tensor) {
  if (InOperator::state.depth && !is_evicted(session, tensor)) return {};
  c10::StorageImpl* storage = storage_of(tensor);
  return storage ? expose(session, *storage) : Constants::Kept{};
}

Constants::Kept expose(Session& session, c10::StorageImpl& storage) {
  Turn turn(session.locks());
  Guard guard(session.locks());
  if (Hold::here() && Hold::covers(StorageTable::value_of(&storage))) return {};
  return hand_out(session, storage, guard.lock());
}

Constants::Kept hand_out(Session& session, c10::StorageImpl& storage, Lock& lock) {
  if (storage.device() == session.device().device)
    session.requests().meet_this_stream();  // A host's tensor has no stream.
  Bytes tracked = 0;
  if (Value* value = StorageTable::value_of(&storage)) {
    if (!value->resident()) session.bring_back(*value, lock);
    value = StorageTable::value_of(&storage);
    tracked = value ? value->size : 0;
    if (value && value->resident()) session.swap().let_write(*value, storage);
  }
  Constants::Kept kept = session.constants().keep_content(&storage, lock);
  TraceRecorder* recorder = session.trace().recorder();
  if (recorder && !session.options().record) recorder->froze(session.storages().key_of(&storage));
  kept.kept += tracked;
  return kept;
}

bool is_evicted(Session& session, const at::Tensor& tensor) {
  std::lock_guard guard(session.engine().mutex());
  const Value* value = StorageTable::value_of(tensor);
  return value && !value->resident();
}

void content_goes(Session& session, const at::Tensor& tensor, Constants::Stays stays) {
  Turn turn(session.locks());
  Guard guard(session.locks());
  session.constants().content_goes(storage_of(tensor), stays, guard.lock());
}

void content_is_back(Session& session, const at::Tensor& tensor) {
  Turn turn(session.locks());
  Guard guard(session.locks());
  session.constants().content_is_back(storage_of(tensor));
}

}  // namespace dtr
