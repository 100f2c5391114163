// Releases a held lock, such as the engine's while an operator runs, for the lifetime of an object.

#pragma once

#include "runtime/csrc/graph/executor.h"

namespace dtr {

class Unlocked {
 public:
  explicit Unlocked(Lock& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;

 private:
  Lock& lock_;
};

}  // namespace dtr
