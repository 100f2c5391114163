// The assertion of every check(): a sentence that must hold, thrown where it does not.

#pragma once

#include <stdexcept>

namespace dtr {

inline void insist(bool holds, const char* sentence) {
  if (!holds) throw std::logic_error(sentence);
}

}  // namespace dtr
