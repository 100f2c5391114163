#include "runtime/csrc/live/swap.h"

#include "runtime/csrc/live/ticks.h"

namespace dtr {

struct Swap::Away {
  SwapFile::Place* place;
  bool written = false;
};

// The cost of its recipe is that to write it, too.
Op* Swap::place_for(Bytes bytes) {
  SwapFile::Place* place = bytes >= transfer_.smallest ? file_->reserve(bytes) : nullptr;
  if (!place) return nullptr;
  Op* op = Engine::begin(0, 1, sizeof(Away));
  new (op->payload()) Away{place};
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
  const std::int64_t begin = ticks();
  file_->write(*its.place, storages_.data_of(value), value.size);
  its.written = true;
  engine_.reprice(value, value.producer->cost / 2);  // It need only be read.
  stats_.out += value.size;
  stats_.spent += to_nanoseconds(ticks() - begin);
  return true;
}

Nanos Swap::read(Op& op, void* to) const {
  const std::int64_t begin = ticks();
  file_->read(*away(op).place, to, op.outputs()[0]->size);
  return to_nanoseconds(ticks() - begin);
}

void Swap::fill(Op& op, at::DataPtr memory, Nanos took) {
  Value& value = *op.outputs()[0];
  Block* block = memory_.adopt(memory.get(), value.size);
  memory.release_context();
  storages_.fill(value, block);
  stats_.in += value.size;
  ++stats_.reloads;
  stats_.spent += took;
}

void Swap::forget(Op& op) { file_->give_back(away(op).place); }

void Swap::close() {
  stats_ = stats();
  file_.reset();
}

SwapStats Swap::stats() const {
  SwapStats found = stats_;
  if (!file_) return found;
  found.capacity = file_->capacity();
  found.reserved = file_->used();
  return found;
}

}  // namespace dtr
