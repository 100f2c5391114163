#include "runtime/csrc/live/swap.h"

namespace dtr {

struct Swap::Away {
  Tier::Room room;
  bool written = false;
};

Swap::Swap(Engine& engine, Memory& memory, StorageTable& storages, std::unique_ptr<Tier> tier,
           bool repeatable, bool always)
    : engine_(engine),
      memory_(memory),
      storages_(storages),
      tier_(std::move(tier)),
      transfer_(always       ? Transfer{}
                : repeatable ? Transfer{.nanoseconds_per_byte = 2, .smallest = kSmallestMoved}
                             : Transfer{.nanoseconds_per_byte = tier_->speed().nanoseconds_per_byte,
                                        .latency = tier_->speed().latency,
                                        .smallest = kSmallestMoved}) {}

// The cost of its recipe is that to write it, too.
Op* Swap::place_for(Bytes bytes) {
  const Tier::Room room = bytes >= transfer_.smallest ? tier_->reserve(bytes) : Tier::Room();
  if (!room.block) return nullptr;
  Op* op = engine_.begin(0, 1, sizeof(Away));
  new (op->payload()) Away{room};
  op->cost = transfer_.cost(bytes);
  return op;
}

Value* Swap::adopt(c10::StorageImpl* storage) {
  const auto bytes = static_cast<Bytes>(storage->nbytes());
  Block* block = storages_.adopt(storage);
  Op* op = block ? place_for(bytes) : nullptr;
  if (!op) return nullptr;
  Value& value = engine_.write(*op, 0, bytes, storage, block);
  storages_.attach(storage, value, block);
  engine_.finish_reload(*op);
  engine_.accessed(value);
  return &value;
}

bool Swap::store(Value& value) {
  Away& its = away(*value.producer);
  if (its.written) return false;
  tier_->write(its.room, storages_.data_of(value), value.size);
  its.written = true;
  engine_.reprice(value, value.producer->cost / 2);  // It need only be read.
  stats_.out += value.size;
  return true;
}

void Swap::read(Op& op, void* to, Stream reader) const {
  tier_->read(away(op).room, to, op.outputs()[0]->size, reader);
}

void Swap::fill(Op& op, at::DataPtr memory) {
  Value& value = *op.outputs()[0];
  Block* block = memory_.adopt(memory.get(), value.size);
  memory.release_context();
  storages_.fill(value, block);
  stats_.in += value.size;
  ++stats_.reloads;
}

void Swap::forget(Op& op) { tier_->give_back(away(op).room); }

void Swap::close() {
  stats_ = stats();
  tier_.reset();
}

SwapStats Swap::stats() const {
  SwapStats found = stats_;
  if (!tier_) return found;
  found.capacity = tier_->capacity();
  found.reserved = tier_->used();
  found.times = tier_->times();
  return found;
}

}  // namespace dtr
