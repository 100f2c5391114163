// A replay warns of nothing. The program has seen the warning when the operator ran first, by the
// filters that it had set then. Again it would come from a line that does not warn, and where
// warnings are errors it would fail backward(), which the program's catch_warnings() does not
// cover.
//
// What C++ warns goes to the handler of the thread (c10/util/Exception.cpp, torch 2.11 to 2.15),
// and here to none. Operators in Python, and torch's functions that they call, warn by Python's
// module: bindings/bind_silence.cpp. What the runtime itself has to say is said when no replay is
// under way (session/notes.h).

#pragma once

#include <c10/util/Exception.h>

namespace dtr {

class Silence {
 public:
  explicit Silence(bool in_python) : guard_(&nobody_) {
    if (in_python) silence_python();
  }
  Silence(const Silence&) = delete;

  static inline void (*silence_python)() = nullptr;  // Set as the module is imported.

 private:
  class Nobody final : public c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  };
  Nobody nobody_;
  const c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace dtr
