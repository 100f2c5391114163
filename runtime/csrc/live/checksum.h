// Whether memory is what it was: any change of one word changes its checksum. A pass over the
// bytes, at some GB/s. Of host memory alone.

#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>

namespace dtr {

std::uint64_t checksum(const c10::StorageImpl* storage);  // 0 where it has no memory.

}  // namespace dtr
