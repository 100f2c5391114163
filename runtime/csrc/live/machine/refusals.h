// What this thread was refused, and who is told of it. An error of ours gets advice once no lock is
// held. An operator may catch the error and then fail in another way: its own error is told what
// was refused before.

#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "dtr_alloc/pool/csrc/units.h"

namespace dtr {

// Says more about an error than is known where it is raised. `at_least`: bytes of a budget that
// would have let this request through. Called without any of our locks.
using Adviser = std::string (*)(Bytes at_least);
void set_adviser(Adviser adviser);

[[noreturn]] void rethrow_with_advice(const c10::OutOfMemoryError& error);
void add_refusal(c10::Error& error);  // That may have led to it.
bool forget_refusal();                // Whether the budget refused.

}  // namespace dtr
