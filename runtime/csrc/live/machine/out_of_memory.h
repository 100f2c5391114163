// Makes the texts of torch.OutOfMemoryError. The first line says what to do; further lines say how
// much was asked and what the memory holds. Advice from Python, and the operator's name, are added
// when none of our locks is held. If an operator catches the error and then throws another one, we
// tell in that error's text what was refused before.

#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"

namespace dtr {

std::string in_mib(Bytes bytes);  // Rounds down, so as not to overstate free memory.

// What a session knows when it cannot serve a request.
struct Refusal {
  Bytes asked, charge;  // The request, and the bytes that its block would count as.
  const PoolStats& pool;
  Bytes locked;            // Bytes of values that running operators and replays hold.
  Bytes made;              // Bytes that the asking operator has allocated so far; not in `locked`.
  Bytes largest_operator;  // The most bytes that one operator has needed so far.
  Bytes full_swap;         // The swap's size if it is full, else 0.
  const std::vector<std::string>& exposures;

  Bytes least_budget() const;  // The least budget that would have served the request.
};

// Each throws torch.OutOfMemoryError. `machine`: the system's error text. `most`: the most bytes
// that a request can get. "Here" is in a Python mode or subclass, whose operators torch before 2.13
// hides.
[[noreturn]] void throw_machine_is_full(const Refusal& refusal, const std::string& machine);
[[noreturn]] void throw_too_large(Bytes asked, Bytes most, Bytes budget);
[[noreturn]] void throw_nothing_is_evicted_here(const Refusal& refusal);
[[noreturn]] void throw_budget_is_full(const Refusal& refusal);
[[noreturn]] void throw_cannot_shrink(Bytes asked, Bytes stays, Bytes budget);
[[noreturn]] void throw_thrashing(Bytes budget, double ratio, double limit);
// For an operator that caught such an error, if strict. `at_least`: see went_on_without().
[[noreturn]] void throw_went_on(const std::string& name, Bytes asked, Bytes at_least);

// Makes the advice for an error's text, in Python. `at_least`: a budget in bytes that would have
// served the request. Called with none of our locks held.
using Adviser = std::string (*)(Bytes at_least);
void set_adviser(Adviser adviser);

// `name`: the operator that failed; empty if none did.
[[noreturn]] void rethrow_with_advice(const c10::OutOfMemoryError& error, const std::string& name);
void add_refusal(c10::Error& error);  // Adds to its text a refused request that may be the cause.
bool forget_refusal();                // True if a larger budget would have served the request.

// Makes the warning about an operator that caught such an error and went on. `at_least`: a budget
// that would have served the request, or 0 if none would.
std::string went_on_without(const std::string& name, Bytes asked, Bytes at_least);

}  // namespace dtr
