// What torch calls in any thread: a storage's deleter, and its hook before a mutable pointer leaves.

#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/session/hold.h"
#include "runtime/csrc/live/session/locks.h"
#include "runtime/csrc/live/storages/storage_table.h"

namespace dtr {

void StorageTable::storage_died(void* context) {
  Session* session = Session::active();
  if (!session) return;  // A forked child: the record is the parent's.
  Session::Guard guard(*session);
  Value& value = *static_cast<Value*>(context);
  if (value.dying) return session->engine().died(value);
  Session::Hold::died(value);
  session->storages().forget_home(value);
}

void StorageTable::raw_access(c10::StorageImpl* storage) {
  Session* session = Session::active();
  if (!session || InOperator::state.depth || Session::Reading::covers(storage)) return;
  if (!tracked(storage)) return static_cast<void>(session->expose(*storage));
  Session::Guard guard(*session);
  Value* value = value_of(storage);
  if (!value || !value->resident() || Session::Hold::covers(value)) return;
  session->meet_this_stream();
  value->locks ? session->engine().freeze(*value) : session->let_write(*value, *storage);
}

}  // namespace dtr
