// What a simulated run sends over its link, by the rules of a live swap (live/storages/swap.h):
// what is not recorded can only be moved, and what is evicted is moved where that is cheaper than
// to recompute it. What was written once need not be written again. Each transfer is waited for:
// nothing comes back ahead of its use.

#include "runtime/csrc/simulator/live_simulation.h"

namespace dtr {

// Its cost is that of both ways, until it is written.
Op& LiveSimulation::begin_reload(std::int64_t tensor, Bytes size) {
  Op& op = *engine_.begin(0, 1, sizeof(Away));
  new (op.payload()) Away{tensor};
  op.cost = link_->cost(size);
  return op;
}

Op* LiveSimulation::reload_for(const Value& value) {
  return may_move(value.size) ? &begin_reload(tensor_of(value), value.size) : nullptr;
}

void LiveSimulation::adopt_movable(std::int64_t tensor, Bytes size, void* data) {
  Op& op = begin_reload(tensor, size);
  Value& value = engine_.write(op, 0, size, &values_[tensor], data);
  values_[tensor] = &value;
  own(data, &value);
  engine_.finish_reload(op);
  engine_.accessed(value);
}

void LiveSimulation::store(Value& value) {
  if (std::exchange(away(value).written, true)) return;
  const Nanos one_way = link_->one_way(value.size);
  engine_.reprice(value, one_way);
  counts_.swapped_out_bytes += value.size;
  counts_.waited_ns += one_way;
}

void LiveSimulation::reload(Op& op) {
  Value& value = *op.outputs()[0];
  Block* block = allocate(value.size);
  counts_.swapped_in_bytes += value.size;
  counts_.waited_ns += link_->one_way(value.size);
  ++counts_.reloads;
  own(block, &value);
  engine_.restore(value, block);
  check_thrash();
}

}  // namespace dtr
