// The texts of torch.OutOfMemoryError: what was asked, what there was, and what to do; and what a
// thread was refused. An error of ours gets advice once no lock is held. An operator may catch the
// error and then fail in another way: its own error is told what was refused before.

#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"

namespace dtr {

std::string in_mib(Bytes bytes);  // Rounded down, as what is free must be.

// What a session knows when it cannot serve a request.
struct Refusal {
  Bytes asked, charge;  // What it counts in the memory.
  const PoolStats& pool;
  Bytes locked;            // Of values that running operators and recomputations hold.
  Bytes made;              // So far, by the operator that asks; not among the locked.
  Bytes largest_operator;  // So far.
  Bytes full_swap;         // Its size; 0: it has room, or there is none.
  const std::vector<std::string>& exposures;

  Bytes least_budget() const;  // That would have served the request.
};

// Each throws torch.OutOfMemoryError. `machine`: what the machine said, which has less memory than
// the budget. `device`: the bytes that it has in all.
[[noreturn]] void throw_machine_is_full(const Refusal& refusal, const std::string& machine);
[[noreturn]] void throw_device_is_too_small(const Refusal& refusal, Bytes device);
[[noreturn]] void throw_nothing_is_evicted_here(const Refusal& refusal);  // Inside a handler.
[[noreturn]] void throw_budget_is_full(const Refusal& refusal);
[[noreturn]] void throw_cannot_shrink(Bytes asked, Bytes stays, Bytes budget);
[[noreturn]] void throw_thrashing(Bytes budget, double ratio, double limit);

// Says more about an error than is known where it is raised. `at_least`: bytes of a budget that
// would have let this request through. Called without any of our locks.
using Adviser = std::string (*)(Bytes at_least);
void set_adviser(Adviser adviser);

[[noreturn]] void rethrow_with_advice(const c10::OutOfMemoryError& error);
void add_refusal(c10::Error& error);  // That may have led to it.
bool forget_refusal();                // Whether the budget refused.

// The warning of an operator that caught such an error. `at_least`: the budget that would have
// served it, or 0 where none would.
std::string went_on_without(const std::string& name, Bytes asked, Bytes at_least);

}  // namespace dtr
