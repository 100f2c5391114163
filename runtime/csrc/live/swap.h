// Values that go to a second tier of memory (tier.h), a file or a device's host, and come back.
// Movable are those that no operator can make again: gradients, the state of an optimizer, results
// of operators that are not recorded. What can be recomputed becomes movable as it is evicted, where
// it takes longer to recompute.
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
// The engine's lock is held in all calls but those that say otherwise.

#pragma once

#include <memory>

#include "dtr_alloc/csrc/tier.h"
#include "runtime/csrc/engine/rules.h"
#include "runtime/csrc/live/storage_table.h"

namespace dtr {

struct SwapStats {
  Bytes capacity = 0, reserved = 0;
  Bytes out = 0, in = 0;  // Written and read so far.
  std::int64_t reloads = 0;
  Tier::Times times;
};

class Swap {
 public:
  // `repeatable`: a transfer costs its bytes instead of its time. `always`: it costs less than any
  // recomputation, for tests.
  Swap(Engine& engine, Memory& memory, StorageTable& storages, std::unique_ptr<Tier> tier,
       bool repeatable, bool always);

  // The content of an ordinary storage of this session's memory may go to the tier from now on.
  // Returns null where it may not.
  Value* adopt(c10::StorageImpl* storage);
  // The recipe of what has room in the tier. Null where there is none.
  Op* place_for(Bytes bytes);
  const Transfer& transfer() const { return transfer_; }
  // Writes a resident value. False where the tier has it already. Throws what the tier throws.
  bool store(Value& value);
  void let_overwrite() { tier_->let_overwrite(); }  // What was stored, where it lay.
  // Reads the output of an Op::reload, which nobody else can evict meanwhile, into memory of its
  // size, for work of a stream. The memory is allocated for arrives_on() of it. Needs no lock.
  void read(Op& op, void* to, Stream reader) const;
  Stream arrives_on(Stream reader) const { return tier_->arrives_on(reader); }
  void fill(Op& op, at::DataPtr memory);  // It is back, in that memory.
  void forget(Op& op);

  SwapStats stats() const;
  void close();  // Gives the tier back. There are no values any more.

 private:
  struct Away;  // What an Op::reload has for a payload.
  static Away& away(Op& op) { return *static_cast<Away*>(op.payload()); }

  Engine& engine_;
  Memory& memory_;
  StorageTable& storages_;
  std::unique_ptr<Tier> tier_;
  const Transfer transfer_;
  SwapStats stats_;
};

}  // namespace dtr
