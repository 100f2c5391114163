// Moves values to a second tier of memory (tier.h) and back. The tier is a file or, for a device,
// the host's memory. A value is movable if it cannot be recomputed: a gradient, an optimizer's
// state, a result of an operator that is not recorded. A recomputable value becomes movable when it
// is evicted, if recomputing it takes longer than a transfer.
//
// The recipe of a movable value is an Op::reload. It reads no value, costs as much as the transfer,
// and brings the bytes back when it runs. So the engine compares reloading with recomputing by its
// usual score. The bytes are written at the value's first eviction and stay in the tier, so a later
// eviction costs nothing. A value's bytes never change: while the program writes a storage, the
// storage is a constant, and afterwards it gets a new value.
//
// Each movable value, even a resident one, has room in the tier for its whole life, so that an
// eviction never finds the tier full. A value without room is treated as if there were no swap.
//
// If copies run beside the program's work, a copy begins before the program uses the value
// (engine/ahead.cpp). Until the use, the value counts as missing, and the copy's memory cannot be
// evicted. But a request that finds no other memory cancels the copies that have begun.
//
// Functions are called with the engine's lock held unless they say otherwise.

#pragma once

#include <c10/util/FunctionRef.h>

#include <memory>
#include <vector>

#include "dtr_alloc/pool/csrc/tier.h"
#include "runtime/csrc/engine/rules.h"
#include "runtime/csrc/live/storages/storage_table.h"

namespace dtr {

struct SwapStats {
  Bytes out = 0, in = 0;  // Bytes written and read so far.
  Bytes ahead = 0;        // The part of `in` whose copies began before the value's use.
  std::int64_t reloads = 0;
  Bytes full = 0;  // The tier's size, if a value found no room in it; else 0.
  Tier::Times times;
};

class Swap {
 public:
  // `repeatable`: a transfer's cost depends only on its bytes, not on the tier's measured speed.
  // `always`, for tests: a transfer costs less than any recomputation.
  Swap(StorageTable& storages, std::unique_ptr<Tier> tier, bool repeatable, bool always);

  // Makes an untracked storage of this session's memory a movable value, and returns the value.
  // Returns null if the storage is too small or in other memory, or if the tier is full.
  Value* adopt(c10::StorageImpl* storage);
  // Reserves room in the tier, and makes its Op::reload. Null if `bytes` is small or the tier full.
  Op* place_for(Bytes bytes);
  Bytes full() const { return stats_.full; }
  const Transfer& transfer() const { return transfer_; }
  // Writes a resident value to the tier; false if already written. Throws what the tier throws.
  bool store(Value& value);
  void mark(Stream stream, Nanos now) { tier_->mark(stream, now); }
  void let_overwrite() { tier_->let_overwrite(); }  // Call before a stored value is overwritten.
  // Reads an Op::reload's output into `to`, which was allocated on the stream arrives_on(reader),
  // for work of the stream `reader`. Meanwhile no other thread may evict the output. Needs no lock.
  void read(Op& op, void* to, Stream reader) const;
  Stream arrives_on(Stream reader) const { return tier_->arrives_on(reader); }
  void fill(Op& op, at::DataPtr memory);  // Makes `memory` the value's content.
  void forget(Op& op);

  // For copies that begin before their value is used, if runs_beside(). begin_ahead() copies to
  // `block`, and owns it unless it throws. arrive() makes `reader` wait for the copy, `order` makes
  // other streams wait for `reader`, and the value is filled; false if no copy was begun.
  bool runs_beside() const { return runs_beside_; }
  Bytes under_way() const { return under_way_; }
  void begin_ahead(Op& op, Block* block);
  bool arrive(Op& op, Stream reader, c10::function_ref<void()> order);
  bool give_up_ahead();  // Cancels all copies that have begun; returns whether there were any.
  void end_step();       // Cancels copies that began before this step and were not used.

  SwapStats stats() const;
  std::unique_ptr<Tier> close();  // Call when no values exist any more. Returns the tier.

 private:
  struct Away;  // The payload of an Op::reload.
  static Away& away(Op& op) { return *static_cast<Away*>(op.payload()); }
  Block* leave_ahead(Op& op);
  void give_up(Op& op);

  StorageTable& storages_;
  Engine& engine_ = storages_.engine();
  Memory& memory_ = storages_.memory();
  std::unique_ptr<Tier> tier_;
  const Transfer transfer_;
  const bool runs_beside_ = tier_->runs_beside();
  SwapStats stats_;
  std::vector<Op*> ahead_;
  Bytes under_way_ = 0;
};

}  // namespace dtr
