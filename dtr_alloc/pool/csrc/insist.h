// Throws the given sentence if a condition does not hold: the assertion of every check().

#pragma once

#include <stdexcept>

namespace dtr {

inline void insist(bool holds, const char* sentence) {
  if (!holds) throw std::logic_error(sentence);
}

}  // namespace dtr
