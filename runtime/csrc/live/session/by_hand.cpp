// What a program asks of a session by hand: to evict a tensor, to bring one back, to keep one in
// memory, or to hand its memory out to code that we do not see.

#include <utility>

#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/session/hold.h"
#include "runtime/csrc/live/session/locks.h"
#include "runtime/csrc/live/session/session.h"

namespace dtr {

bool Session::evict(const at::Tensor& tensor) {
  Guard guard(*this);
  Value* value = StorageTable::value_of(tensor);
  if (!value || !value->resident() || value->locks) return false;
  engine_.evict(*value);
  return true;
}

void Session::materialize(const at::Tensor& tensor) {
  Guard guard(*this);
  Value* value = StorageTable::value_of(tensor);
  if (value && !value->resident()) bring_back(*value, guard.lock());
}

// In its turn: an operator that writes the tensor must not find it pinned half-way.
void Session::pin(const at::Tensor& tensor) {
  Turn turn(*this);
  Guard guard(*this);
  Value* value = StorageTable::value_of(tensor);
  if (value && !value->resident()) bring_back(*value, guard.lock());
  value = StorageTable::value_of(tensor);
  if (value && value->resident()) engine_.freeze(*value);
}

Constants::Kept Session::expose(const at::Tensor& tensor) {
  if (InOperator::state.depth && !is_evicted(tensor)) return {};
  c10::StorageImpl* storage = storage_of(tensor);
  return storage ? expose(*storage) : Constants::Kept{};
}

Constants::Kept Session::expose(c10::StorageImpl& storage) {
  Turn turn(*this);
  Guard guard(*this);
  if (Hold::here() && Hold::covers(StorageTable::value_of(&storage))) return {};
  return hand_out(storage, guard.lock());
}

Constants::Kept Session::hand_out(c10::StorageImpl& storage, Lock& lock) {
  if (storage.device() == device_.device) meet_this_stream();  // A host's tensor has no stream.
  Bytes tracked = 0;
  if (Value* value = StorageTable::value_of(&storage)) {
    if (!value->resident()) bring_back(*value, lock);
    value = StorageTable::value_of(&storage);
    tracked = value ? value->size : 0;
    if (value && value->resident()) let_write(*value, storage);
  }
  Constants::Kept kept = constants_.keep_content(&storage, lock);
  TraceRecorder* recorder = trace_.recorder();
  if (recorder && !options_.record) recorder->froze(storages_.key_of(&storage));
  kept.kept += tracked;
  return kept;
}

void Session::note_exposure(std::string text) {
  std::lock_guard guard(engine_.mutex());
  exposures_.push_back(std::move(text));
}

std::vector<std::string> Session::exposures() const {
  std::lock_guard guard(engine_.mutex());
  return exposures_;
}

void Session::note_stayed(std::string region_and_why) {
  std::lock_guard guard(engine_.mutex());
  stayed_.insert(std::move(region_and_why));
}

std::vector<std::string> Session::stayed() const {
  std::lock_guard guard(engine_.mutex());
  return {stayed_.begin(), stayed_.end()};
}

bool Session::is_evicted(const at::Tensor& tensor) const {
  std::lock_guard guard(engine_.mutex());
  const Value* value = StorageTable::value_of(tensor);
  return value && !value->resident();
}

void Session::content_goes(const at::Tensor& tensor, Constants::Stays stays) {
  Turn turn(*this);
  Guard guard(*this);
  constants_.content_goes(storage_of(tensor), stays, guard.lock());
}

void Session::content_is_back(const at::Tensor& tensor) {
  Turn turn(*this);
  Guard guard(*this);
  constants_.content_is_back(storage_of(tensor));
}

}  // namespace dtr
