// Moves values to a second tier of memory (tier.h), a file or the host of a device, and back.
// Values are movable if they cannot be recomputed: gradients, an optimizer's state, results of
// operators that are not recorded. A recomputable value becomes movable when it is evicted, if
// recomputing it takes longer than a transfer.
//
// The recipe of a movable value is an Op::reload. It reads nothing, costs as much as the transfer,
// and brings the bytes back when it runs. So the engine compares reloading with recomputing by its
// usual score. The bytes are written when the value is first evicted, and stay in the tier, so
// another eviction costs nothing. A value's bytes never change: a storage is a constant while the
// program writes it, and a new value afterwards.
//
// Each movable value has room in the tier for its whole life, resident or not, so that an eviction
// never finds the tier full. Without room, a value is treated as if there were no swap.
//
// If copies run beside the program's work, a copy begins before the program uses the value
// (engine/ahead.cpp). Until then the value counts as missing, and the copy's memory cannot be
// evicted. But a request that finds no other memory cancels the copies.
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
  Bytes out = 0, in = 0;  // Written and read so far.
  Bytes ahead = 0;        // Part of `in`: begun before the program used the value.
  std::int64_t reloads = 0;
  Bytes full = 0;  // The tier's size, if a value found no room in it.
  Tier::Times times;
};

class Swap {
 public:
  // `repeatable`: a transfer's cost is computed from its bytes, not measured. `always`, for tests:
  // a transfer costs less than any recomputation.
  Swap(StorageTable& storages, std::unique_ptr<Tier> tier, bool repeatable, bool always);

  // Makes an ordinary storage of this session's memory movable. Returns its new value, or null if
  // it cannot be moved.
  Value* adopt(c10::StorageImpl* storage);
  // Reserves room in the tier, and makes an Op::reload for it. Null if there is no room.
  Op* place_for(Bytes bytes);
  Bytes full() const { return stats_.full; }
  const Transfer& transfer() const { return transfer_; }
  // Writes a resident value. False if the tier has its bytes. Throws what the tier throws.
  bool store(Value& value);
  void mark(Stream stream, Nanos now) { tier_->mark(stream, now); }
  void let_overwrite() { tier_->let_overwrite(); }  // Before stored values' memory is overwritten.
  // Reads the output of an Op::reload to `to`, which was allocated for arrives_on(reader), for work
  // of the stream `reader`. No other thread may evict the output meanwhile. Needs no lock.
  void read(Op& op, void* to, Stream reader) const;
  Stream arrives_on(Stream reader) const { return tier_->arrives_on(reader); }
  void fill(Op& op, at::DataPtr memory);  // Gives the value its content, `memory`.
  void forget(Op& op);

  // Copies that begin before their value is used, if runs_beside(). begin_ahead() owns `block`, the
  // copy's memory, unless it throws. arrive() fills the value, for work of the stream `reader`,
  // after `order` has made other streams wait for `reader`; it returns false if no copy was begun.
  bool runs_beside() const { return runs_beside_; }
  Bytes under_way() const { return under_way_; }
  void begin_ahead(Op& op, Block* block);
  bool arrive(Op& op, Stream reader, c10::function_ref<void()> order);
  bool give_up_ahead();  // Cancels all such copies; returns whether there were any.
  void end_step();       // Cancels copies begun before this step and not used.

  SwapStats stats() const;
  std::unique_ptr<Tier> close();  // Returns the tier, when no values exist any more.

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
