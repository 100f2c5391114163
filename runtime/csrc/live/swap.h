// Values that go to a file and come back from it. Movable are those that no operator can make
// again: gradients, the state of an optimizer, results of operators that are not recorded. What can
// be recomputed becomes movable as it is evicted, where it takes longer to recompute.
//
// A movable value has a recipe like any other, an Op::reload. It reads nothing, its cost is that of
// the transfer, and to run it brings the bytes back from the file. So the engine chooses between
// dropping and swapping by the score that it has. The bytes are written when the value is first
// evicted; from then on they are there, and another eviction costs nothing. A value never changes:
// what the program writes is constant while it is written, and a new value afterwards.
//
// Each movable value has its place in the file while it lives, in memory or not, so that an eviction
// never finds the file full. Where there is no place, a value stays what it would be without swap.
//
// The engine's lock is held in all calls but those that say otherwise.

#pragma once

#include <memory>

#include "runtime/csrc/engine/rules.h"
#include "runtime/csrc/live/storage_table.h"
#include "runtime/csrc/live/swap_file.h"

namespace dtr {

struct SwapStats {
  Bytes capacity = 0, reserved = 0;
  Bytes out = 0, in = 0;  // Written and read so far.
  std::int64_t reloads = 0;
  Nanos spent = 0ns;
};

class Swap {
 public:
  // `repeatable`: a transfer costs its bytes instead of its time. `always`: it costs less than any
  // recomputation, for tests.
  Swap(Engine& engine, Memory& memory, StorageTable& storages, std::unique_ptr<SwapFile> file,
       bool repeatable, bool always)
      : engine_(engine),
        memory_(memory),
        storages_(storages),
        file_(std::move(file)),
        transfer_{.nanoseconds_per_byte = always       ? 0
                                          : repeatable ? 2
                                                       : file_->nanoseconds_per_byte(),
                  .smallest = always ? 1 : kSmallestMoved} {}

  // The content of an ordinary storage of this session's memory may go to the file from now on.
  // Returns null where it may not.
  Value* adopt(c10::StorageImpl* storage);
  // The recipe of what has a place in the file. Null where there is none.
  Op* place_for(Bytes bytes);
  const Transfer& transfer() const { return transfer_; }
  // Writes a resident value. False where the file has it already. Throws what the file throws.
  bool store(Value& value);
  // Reads the output of an Op::reload, which nobody else can evict meanwhile, into memory of its
  // size. Needs no lock. Returns the time that it took.
  Nanos read(Op& op, void* to) const;
  void fill(Op& op, at::DataPtr memory, Nanos took);  // It is back, in that memory.
  void forget(Op& op);

  SwapStats stats() const;
  void close();  // Gives the disk its room back. There are no values any more.

 private:
  struct Away;  // What an Op::reload has for a payload.
  static Away& away(Op& op) { return *static_cast<Away*>(op.payload()); }

  Engine& engine_;
  Memory& memory_;
  StorageTable& storages_;
  std::unique_ptr<SwapFile> file_;
  const Transfer transfer_;
  SwapStats stats_;
};

}  // namespace dtr
