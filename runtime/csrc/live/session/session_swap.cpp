#include "runtime/csrc/live/session/session_swap.h"

#include <ATen/record_function.h>

#include <string>
#include <utility>

#include "runtime/csrc/engine/held.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/session/hold.h"
#include "runtime/csrc/live/session/locks.h"
#include "runtime/csrc/live/session/session.h"

namespace dtr {

namespace {

// Whether somebody besides the results has the storage.
bool is_held_elsewhere(c10::StorageImpl* storage, const Call& call,
                       const torch::jit::Stack& stack) {
  std::size_t here = 0;
  call.for_each_result(stack, [&](const c10::TensorImpl& tensor) {
    here += tensor.has_storage() && storage_of(tensor) == storage;
  });
  return c10::raw::intrusive_ptr::use_count(storage) > here;
}

}  // namespace

SessionSwap::SessionSwap(Session& session, Swap* swap)
    : session_(session),
      swap_(swap),
      engine_(session.engine()),
      memory_(session.memory()),
      storages_(session.storages()),
      device_(session.device()),
      requests_(session.requests()),
      events_(session.events()) {}

// What nobody can make again may go to the swap: fresh results, and what was there before it was
// written. Of other memory somebody may have the address. A result is fresh if its operator made
// the memory, and nobody else holds it. It need not: `set_` lays a tensor over a storage that it is
// given as such, and is how copy.copy and pickle make a tensor (torch 2.13, torch/_utils.py).
bool SessionSwap::may_adopt(const Call& call) const {
  if (!swap_ || !call.here || call.foreign || call.handled || call.info.others) return false;
  if (call.info.stays) return false;
  return !requests_.capturing() && !Hold::here();
}

void SessionSwap::adopt_movable(const Call& call, c10::StorageImpl* storage) {
  if (StorageTable::tracked(storage) || session_.constants().find(storage)) return;
  Value* value = swap_->adopt(storage);
  if (value && call.info.blank) keep_until_used(engine_, *value);
}

// While it was constant another thread may have begun to read it, without a lock.
void SessionSwap::adopt_what_was_written(const Call& call) {
  if (!may_adopt(call) || session_.scope().joined() > 0) return;
  for (const auto& storage : call.movable) adopt_movable(call, storage.get());
}

void SessionSwap::adopt_what_was_made(const Call& call, const torch::jit::Stack& stack) {
  if (!may_adopt(call) || call.info.surgery) return;
  call.for_each_result(stack, [&](const c10::TensorImpl& tensor) {
    if (!call.makes_value(device_, tensor)) return;
    c10::StorageImpl* storage = storage_of(tensor);
    if (!is_held_elsewhere(storage, call, stack)) adopt_movable(call, storage);
  });
}

void SessionSwap::note_movable(Call& call, c10::StorageImpl* storage) {
  if (!swap_) return;
  call.movable.push_back(share(storage));
}

void SessionSwap::close() {
  std::unique_ptr<Tier> over;  // Ends after the lock, since it may wait for a device.
  const std::lock_guard guard(engine_.mutex());  // Another thread may be asking what it did.
  if (swap_) over = swap_->close();
}

void SessionSwap::reload(Op& op, Lock& lock) {
  const Stream reader = device_.current_stream();
  const auto arrived = [&] {
    if (memory_.many_streams()) memory_.spread_stream(reader);
  };
  if (swap_->arrive(op, reader, arrived)) return;
  Value& value = *op.outputs()[0];
  at::DataPtr memory;
  Nanos at = 0ns;
  engine_.needs().begins_copy(value);  // Else another thread's operator might begin it, too.
  try {
    const Meanwhile replaying(InOperator::state.replaying, true);
    const Meanwhile again(EventLog::cause, {.again = true});
    Unlocked open(lock);
    memory = device_.ordinary(requests_.allocate(value.size, swap_->arrives_on(reader)));
    RECORD_FUNCTION("dtr::reload", c10::ArrayRef<const c10::IValue>());
    at = EventLog::now();
    swap_->read(op, memory.get(), reader);
    arrived();
  } catch (...) {
    engine_.needs().await(value);
    throw;
  }
  swap_->fill(op, std::move(memory));
  events_.swapped(EventLog::Kind::kSwappedIn, at, value.size);
}

// An operator is over, or compiled code. `met`: it ran on the device, and its stream is known. What
// fails to come back is told when the program asks for it.
void SessionSwap::copy_beside(bool met) {
  if (!swap_ || !swap_->runs_beside() || requests_.capturing() || InOperator::state.handled) return;
  try {
    if (met) swap_->mark(device_.current_stream(), engine_.clock());
  } catch (const std::exception&) {  // Then a copy waits for more.
  }
  try {
    reload_ahead();
  } catch (const std::exception&) {
  }
}

// Begins what is due. An eighth of the budget may be under way.
void SessionSwap::reload_ahead() {
  constexpr Bytes kShare = 8;
  const Bytes most = memory_.budget() / kShare;
  if (!engine_.needs().foretells()) {
    swap_->give_up_ahead();
    return;
  }
  for (Value* value : engine_.needs().due(swap_->transfer().one_way(most))) {
    if (value->size > most) {
      engine_.needs().pass_over(*value);
    } else if (swap_->under_way() + value->size > most || !begin_ahead(*value)) {
      return;
    }
  }
}

bool SessionSwap::begin_ahead(Value& value) {
  const Nanos at = events_.begin();
  std::string shortage;
  const Stream stream = swap_->arrives_on(device_.current_stream());
  const Meanwhile again(EventLog::cause, {.again = true});
  Block* block = requests_.take(value.size, Fit::kCommitted, stream, shortage);
  if (!block) return false;
  try {
    swap_->begin_ahead(*value.producer, block);
  } catch (...) {
    memory_.free(block);
    throw;
  }
  events_.swapped(EventLog::Kind::kSwappedIn, at, value.size);
  return true;
}

void SessionSwap::store(Value& value) {
  const Nanos at = events_.begin();
  if (!swap_->store(value)) return;
  events_.swapped(EventLog::Kind::kSwappedOut, at, value.size);
}

// An operator that has locked the value may be about to record that it reads it.
void SessionSwap::let_write(Value& value, c10::StorageImpl& storage) {
  const bool locked = value.locks > (value.unfilled ? 1 : 0);
  if (value.movable() && (value.uses || locked)) {
    store(value);
    swap_->let_overwrite();
  }
  storages_.let_write(value, storage);
}

}  // namespace dtr
