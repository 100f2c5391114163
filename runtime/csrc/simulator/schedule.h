// What a simulation runs: a trace as flat columns.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtr_alloc/pool/csrc/units.h"

namespace dtr {

// runtime/trace/schedule.py makes it. Tensors are numbered in the order of the
// operators that make them; the results of one operator are consecutive.
struct Schedule {
  // What can happen: an operator runs; the program takes a reference; a tensor is brought into
  // memory for good; a reference is given back. The last two are for the live runtime's rules: a
  // tensor can't be recomputed any more; an optimizer's step ends.
  enum Kind : std::int64_t { kCompute, kGet, kPin, kRelease, kFreeze, kStep };
  // What happens to memory inside an operator: so many bytes are allocated; its block of that
  // number is freed; the program lets a tensor go; so many bytes that it writes are copied before
  // it runs again.
  enum MemoryEvent : std::int64_t { kAllocated, kFreed, kReleased, kCopied };

  std::span<const std::int64_t> tensor_size;   // Bytes; 0 for a view.
  std::span<const std::int64_t> tensor_alias;  // The tensor whose bytes it shares, or -1.
  std::span<const std::int64_t> op_cost, op_constant, op_together;
  std::span<const std::int64_t> op_args_begin, op_args;  // Compressed rows.
  std::span<const std::int64_t> op_results_begin;
  std::span<const std::int64_t> kind, operand;  // Instructions: an operator's or a tensor's number.

  // For the live runtime's rules.
  std::span<const std::int64_t> tensor_tracked;   // 1, 0, or -1: by its size.
  std::span<const std::int64_t> tensor_in_place;  // The tensor whose storage it was written to, -1.
  std::span<const std::int64_t> tensor_block;     // The number of the block of its operator, or -1.
  // Compressed rows. An operator without any allocates its fresh results in order.
  std::span<const std::int64_t> op_events_begin, event_kind, event_value;

  std::int64_t ops() const { return static_cast<std::int64_t>(op_cost.size()); }
  std::int64_t tensors() const { return static_cast<std::int64_t>(tensor_size.size()); }
  Nanos cost(std::int64_t op) const { return Nanos{op_cost[op]}; }
  std::span<const std::int64_t> args(std::int64_t op) const {
    return op_args.subspan(op_args_begin[op], op_args_begin[op + 1] - op_args_begin[op]);
  }
  bool tracked(std::int64_t tensor) const;
  std::vector<std::int64_t> roots() const;  // By tensor: the first of those that share its bytes.
};

}  // namespace dtr
