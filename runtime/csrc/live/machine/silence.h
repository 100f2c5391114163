// Silences warnings in a replay. The operator warned in its first run already, under the warning
// filters that the program had set then. In a replay, a warning would name an unrelated line. If
// warnings are errors, it would make backward() fail, outside the program's catch_warnings().
//
// C++ warnings go to the thread's handler (c10/util/Exception.cpp, torch 2.11 to 2.15); this class
// sets an empty handler. Operators in Python, and torch's functions that they call, warn by
// Python's module `warnings`, which bindings/bind_silence.cpp silences. The runtime's own warnings
// wait until no replay is under way (session/notes.h).

#pragma once

#include <c10/util/Exception.h>

namespace dtr {

class Silence {
 public:
  explicit Silence(bool in_python) : guard_(&nobody_) {
    if (in_python) silence_python();
  }
  Silence(const Silence&) = delete;

  static inline void (*silence_python)() = nullptr;  // Set when our Python module is imported.

 private:
  class Nobody final : public c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  };
  Nobody nobody_;
  const c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace dtr
