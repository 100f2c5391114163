// Holds what a simulation runs: a trace, as arrays of integers (columns).

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtr_alloc/pool/csrc/units.h"
#include "runtime/csrc/engine/trace_kinds.h"

namespace dtr {

// runtime/trace/schedule.py makes the columns and explains them. Tensors are numbered in the order
// of the operators that make them; the results of one operator are consecutive.
#define DTR_SCHEDULE_COLUMNS(X) \
  X(tensor_size)                \
  X(tensor_alias)               \
  X(tensor_tracked)             \
  X(tensor_in_place)            \
  X(tensor_block)               \
  X(op_cost)                    \
  X(op_constant)                \
  X(op_together)                \
  X(op_args_begin)              \
  X(op_args)                    \
  X(op_results_begin)           \
  X(op_events_begin)            \
  X(event_kind)                 \
  X(event_value)                \
  X(kind)                       \
  X(operand)

struct Schedule {
  enum Kind : std::int64_t { DTR_STEP_KINDS(DTR_ENUMERATOR) };
  enum MemoryEvent : std::int64_t { DTR_MEMORY_EVENTS(DTR_ENUMERATOR) };
#define DTR_COLUMN(name) std::span<const std::int64_t> name;
  DTR_SCHEDULE_COLUMNS(DTR_COLUMN)
#undef DTR_COLUMN

  std::int64_t ops() const { return static_cast<std::int64_t>(op_cost.size()); }
  std::int64_t tensors() const { return static_cast<std::int64_t>(tensor_size.size()); }
  Nanos cost(std::int64_t op) const { return Nanos{op_cost[op]}; }
  std::span<const std::int64_t> args(std::int64_t op) const {
    return op_args.subspan(op_args_begin[op], op_args_begin[op + 1] - op_args_begin[op]);
  }
  bool tracked(std::int64_t tensor) const;
  std::vector<std::int64_t> roots() const;  // By tensor: the first tensor with the same storage.
};

}  // namespace dtr
