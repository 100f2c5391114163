// What torch calls in any thread: a storage's deleter, and its hook before a mutable pointer
// leaves.

#include "runtime/csrc/engine/held.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/session/by_hand.h"
#include "runtime/csrc/live/session/hold.h"
#include "runtime/csrc/live/session/session_swap.h"
#include "runtime/csrc/live/storages/storage_table.h"

namespace dtr {

void StorageTable::storage_died(void* context) {
  Session* session = Session::active();
  if (!session) return;  // A forked child: the record is the parent's.
  Guard guard(session->locks());
  Value& value = *static_cast<Value*>(context);
  if (value.dying) return died(session->engine(), value);
  Hold::died(value);
  session->storages().forget_home(value);
}

void StorageTable::raw_access(c10::StorageImpl* storage) {
  Session* session = Session::active();
  if (!session || InOperator::state.depth || Reading::covers(storage)) return;
  if (!tracked(storage)) return static_cast<void>(expose(*session, *storage));
  Guard guard(session->locks());
  Value* value = value_of(storage);
  if (!value || !value->resident() || Hold::covers(value)) return;
  session->requests().meet_this_stream();
  value->locks ? session->engine().freeze(*value) : session->swap().let_write(*value, *storage);
}

}  // namespace dtr
