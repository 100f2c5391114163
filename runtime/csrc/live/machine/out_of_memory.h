// Makes the texts of torch.OutOfMemoryError: what was asked, what was free, and what to do. Advice
// is added when no lock is held. An operator may catch the error and then throw another: we add to
// its text what was refused before.

#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"

namespace dtr {

std::string in_mib(Bytes bytes);  // Rounded down, as free bytes must be.

// What a session knows when it cannot serve a request.
struct Refusal {
  Bytes asked, charge;  // Requested bytes; bytes that the block would count as.
  const PoolStats& pool;
  Bytes locked;            // Of values that running operators and recomputations hold.
  Bytes made;              // Allocated so far by the asking operator; not in `locked`.
  Bytes largest_operator;  // In bytes, so far.
  Bytes full_swap;         // The swap's size if it is full, else 0.
  const std::vector<std::string>& exposures;

  Bytes least_budget() const;  // The least that would have served the request.
};

// Each throws torch.OutOfMemoryError. `machine`: the system's error text, if the machine has less
// memory than the budget. `device`: all bytes of the device.
[[noreturn]] void throw_machine_is_full(const Refusal& refusal, const std::string& machine);
[[noreturn]] void throw_device_is_too_small(const Refusal& refusal, Bytes device);
[[noreturn]] void throw_nothing_is_evicted_here(const Refusal& refusal);  // In a mode or subclass.
[[noreturn]] void throw_budget_is_full(const Refusal& refusal);
[[noreturn]] void throw_cannot_shrink(Bytes asked, Bytes stays, Bytes budget);
[[noreturn]] void throw_thrashing(Bytes budget, double ratio, double limit);

// Returns advice from Python for an error's text. `at_least`: a budget in bytes that would have
// served the request. Called with none of our locks held.
using Adviser = std::string (*)(Bytes at_least);
void set_adviser(Adviser adviser);

[[noreturn]] void rethrow_with_advice(const c10::OutOfMemoryError& error);
void add_refusal(c10::Error& error);  // Appends a refusal that may be the cause.
bool forget_refusal();                // Returns whether there was a refusal.

// The warning about an operator that caught such an error. `at_least`: a budget that would have
// served the request, or 0 if none would.
std::string went_on_without(const std::string& name, Bytes asked, Bytes at_least);

}  // namespace dtr
