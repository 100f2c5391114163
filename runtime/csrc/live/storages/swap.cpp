#include "runtime/csrc/live/storages/swap.h"

#include <algorithm>
#include <utility>

namespace dtr {

struct Swap::Away {
  Tier::Room room;
  bool written = false;
  Block* ahead = nullptr;  // Where a copy goes that nobody has asked for yet,
  bool old = false;        // and whether it was begun before the step under way.
};

namespace {

Transfer transfer_by(const Tier& tier, bool repeatable, bool always) {
  if (always) return {};
  if (repeatable) return {.nanoseconds_per_byte = 2, .smallest = kSmallestMoved};
  return {.nanoseconds_per_byte = tier.speed().nanoseconds_per_byte,
          .latency = tier.speed().latency,
          .smallest = kSmallestMoved};
}

}  // namespace

Swap::Swap(StorageTable& storages, std::unique_ptr<Tier> tier, bool repeatable, bool always)
    : storages_(storages),
      tier_(std::move(tier)),
      transfer_(transfer_by(*tier_, repeatable, always)) {}

// The cost of its recipe is that to write it, too.
Op* Swap::place_for(Bytes bytes) {
  if (bytes < transfer_.smallest) return nullptr;
  const Tier::Room room = tier_->reserve(bytes);
  if (!room.block) {
    stats_.full = tier_->capacity();
    return nullptr;
  }
  Op* op = engine_.begin(0, 1, sizeof(Away));
  new (op->payload()) Away{room};
  op->cost = transfer_.cost(bytes);
  return op;
}

Value* Swap::adopt(c10::StorageImpl* storage) {
  const auto bytes = bytes_of(storage);
  StorageTable::Adopted block = storages_.adopt(storage);
  Op* op = block ? place_for(bytes) : nullptr;
  if (!op) return nullptr;
  Value& value = engine_.write(*op, 0, bytes, storage, block.get());
  storages_.attach(storage, value, block.release());
  engine_.finish_reload(*op);
  engine_.accessed(value);
  return &value;
}

bool Swap::store(Value& value) {
  Away& its = away(*value.producer);
  if (its.written) return false;
  // By its last access its bytes were made: what an operator writes is a new value or a constant
  // afterwards, and what may be written later, such as a collective's result, is never adopted
  // (SessionSwap::may_adopt). What was recomputed may be younger.
  const Nanos made = value.recomputes > 0 ? Tier::kUnknown : value.last_access;
  tier_->write(its.room, storages_.data_of(value), value.size, made);
  its.written = true;
  engine_.reprice(value, transfer_.one_way(value.size));  // It need only be read.
  stats_.out += value.size;
  return true;
}

void Swap::read(Op& op, void* to, Stream reader) const {
  TORCH_INTERNAL_ASSERT(away(op).written, "what was never written to the swap is read from it");
  Tier::Room& room = away(op).room;
  tier_->begin_read(room, to, op.outputs()[0]->size);
  tier_->finish_read(room, to, reader);
}

void Swap::fill(Op& op, at::DataPtr memory) {
  Value& value = *op.outputs()[0];
  Block* block = memory_.adopt(memory.get(), value.size);
  memory.release_context();
  storages_.fill(value, block);
  stats_.in += value.size;
  ++stats_.reloads;
}

void Swap::forget(Op& op) {
  if (away(op).ahead) memory_.free(leave_ahead(op));
  tier_->give_back(away(op).room);
}

void Swap::begin_ahead(Op& op, Block* block) {
  Value& value = *op.outputs()[0];
  ahead_.reserve(ahead_.size() + 1);
  tier_->begin_read(away(op).room, memory_.data(block), value.size);
  away(op).ahead = block;
  away(op).old = false;
  ahead_.push_back(&op);
  under_way_ += block->size;
  engine_.needs().begins_copy(value);
}

bool Swap::arrive(Op& op, Stream reader, c10::function_ref<void()> order) {
  Away& its = away(op);
  if (!its.ahead) return false;
  tier_->finish_read(its.room, memory_.data(its.ahead), reader);
  try {
    order();
  } catch (...) {
    give_up(op);
    throw;
  }
  Value& value = *op.outputs()[0];
  storages_.fill(value, leave_ahead(op));
  stats_.in += value.size;
  stats_.ahead += value.size;
  ++stats_.reloads;
  return true;
}

Block* Swap::leave_ahead(Op& op) {
  Block* const block = std::exchange(away(op).ahead, nullptr);
  std::erase(ahead_, &op);
  under_way_ -= block->size;
  return block;
}

void Swap::give_up(Op& op) {
  memory_.free(leave_ahead(op));
  engine_.needs().await(*op.outputs()[0]);
}

bool Swap::give_up_ahead() {
  const bool any = !ahead_.empty();
  while (!ahead_.empty()) give_up(*ahead_.back());
  return any;
}

void Swap::end_step() {
  for (std::size_t i = ahead_.size(); i-- > 0;) {
    if (std::exchange(away(*ahead_[i]).old, true)) give_up(*ahead_[i]);
  }
}

std::unique_ptr<Tier> Swap::close() {
  stats_ = stats();
  return std::move(tier_);
}

SwapStats Swap::stats() const {
  SwapStats found = stats_;
  if (!tier_) return found;
  found.times = tier_->times();
  return found;
}

}  // namespace dtr
