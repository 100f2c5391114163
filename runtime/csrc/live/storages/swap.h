// Values that go to a second tier of memory (tier.h), a file or a device's host, and come back.
// Movable are those that no operator can make again: gradients, the state of an optimizer, results
// of operators that are not recorded. What can be recomputed becomes movable as it is evicted,
// where it takes longer to recompute.
//
// A movable value has a recipe like any other, an Op::reload. It reads nothing, its cost is that of
// the transfer, and to run it brings the bytes back. So the engine chooses between dropping and
// swapping by the score that it has. The bytes are written when the value is first evicted; from
// then on they are there, and another eviction costs nothing. A value never changes: what the
// program writes is constant while it is written, and a new value afterwards.
//
// Each movable value has its room in the tier while it lives, in memory or not, so that an eviction
// never finds the tier full. Where there is no room, a value stays what it would be without swap.
//
// Where copies run beside the program's work, a copy is begun before the program touches the value
// (engine/ahead.cpp). Until then the value is missing as before, and the memory that the copy goes
// to is the swap's: nobody evicts it, and who finds no other memory lets the swap give it up.
//
// The engine's lock is held in all calls but those that say otherwise.

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
  Bytes ahead = 0;        // Of it, what was on its way before it was asked for.
  std::int64_t reloads = 0;
  Bytes full = 0;  // Its size, if something found no room in it.
  Tier::Times times;
};

class Swap {
 public:
  // `repeatable`: a transfer costs its bytes instead of its time. `always`: it costs less than any
  // recomputation, for tests.
  Swap(StorageTable& storages, std::unique_ptr<Tier> tier, bool repeatable, bool always);

  // The content of an ordinary storage of this session's memory may go to the tier from now on.
  // Returns null where it may not.
  Value* adopt(c10::StorageImpl* storage);
  // The recipe of what has room in the tier. Null where there is none.
  Op* place_for(Bytes bytes);
  Bytes full() const { return stats_.full; }
  const Transfer& transfer() const { return transfer_; }
  // Writes a resident value. False where the tier has it already. Throws what the tier throws.
  bool store(Value& value);
  void mark(Stream stream, Nanos now) { tier_->mark(stream, now); }
  void let_overwrite() { tier_->let_overwrite(); }  // What was stored, where it lay.
  // Reads the output of an Op::reload, which nobody else can evict meanwhile, into memory of its
  // size, for work of a stream. The memory is allocated for arrives_on() of it. Needs no lock.
  void read(Op& op, void* to, Stream reader) const;
  Stream arrives_on(Stream reader) const { return tier_->arrives_on(reader); }
  void fill(Op& op, at::DataPtr memory);  // It is back, in that memory.
  void forget(Op& op);

  // Ahead of its use, where copies run beside. begin_ahead() takes the block, or throws what the
  // tier throws. Then arrive() fills the value, for work of a stream, when `order` has made other
  // streams wait for that one; false where nothing was begun.
  bool runs_beside() const { return runs_beside_; }
  Bytes under_way() const { return under_way_; }
  void begin_ahead(Op& op, Block* block);
  bool arrive(Op& op, Stream reader, c10::function_ref<void()> order);
  bool give_up_ahead();  // All of it. Whether there was any.
  void end_step();       // Gives up what was begun before the step that ends, and is not touched.

  SwapStats stats() const;
  std::unique_ptr<Tier> close();  // Gives the tier back. There are no values any more.

 private:
  struct Away;  // What an Op::reload has for a payload.
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
