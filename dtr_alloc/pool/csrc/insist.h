// Throws std::logic_error with the given sentence if a condition is false: for internal checks.

#pragma once

#include <stdexcept>

namespace dtr {

inline void insist(bool holds, const char* sentence) {
  if (!holds) throw std::logic_error(sentence);
}

}  // namespace dtr
