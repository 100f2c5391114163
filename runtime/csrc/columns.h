// What scores are made of, as a structure of arrays: one row for each candidate, the same columns
// for the engine, its tests, and the kernels on a device (kernels/).

#pragma once

#include <cstddef>
#include <cstdint>

#include "dtr_alloc/csrc/arena.h"

namespace dtr {

struct ColumnsView {
  std::size_t count;
  const Bytes *size, *free_left, *free_right;  // The free bytes directly beside the block.
  const Nanos *last_access, *cost, *neighbourhood;
  const std::int32_t* recomputes;
  const std::uint8_t* evictable;  // 1, or 0 while it is locked.
  const std::uint64_t* order;     // When it last became evictable: the later, the greater.
};

}  // namespace dtr
