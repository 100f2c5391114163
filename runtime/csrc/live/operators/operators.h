// Describes an operator to the runtime, which must know these facts before it records a call. They
// are worked out once, from the operator's schema and from tables.
//
// Pure views and composite operators never reach the runtime: the dispatcher itself skips us at no
// cost (intercept/dispatch_key.h). All others are found by the address of their schema, in a table
// that readers search without a lock. A kernel of ours searches once, and keeps what it found.
// Facts that no schema states stand in the tables of operators.cpp, a row for each: undeclared
// writes, operators that read only the shape of their arguments, and more.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "runtime/csrc/live/operators/unordered.h"

namespace dtr {

struct OperatorInfo {
  explicit OperatorInfo(const c10::OperatorHandle& op);

  const c10::OperatorHandle handle;
  std::string name;
  const Unordered unordered;
  std::uint32_t arguments = 0;
  std::uint32_t returns = 0;
  std::uint64_t tensors = 0;         // Bit i: argument i is or may hold tensors.
  std::uint64_t lists = 0;           // Bit i: argument i is a list of tensors.
  std::uint64_t optional_lists = 0;  // Bit i: argument i is a list whose items may be None.
  std::uint64_t writes = 0;          // Bit i: argument i is written.
  std::uint64_t statistics = 0;      // Bit i: written, but no result depends on it (batch norm).
  std::int32_t generator = -1;       // Index of the Generator argument.
  std::int32_t device = -1;          // Index of the Device argument.
  std::int32_t training = -1;        // Index of the flag to write `statistics`; -1: always written.
  std::int32_t dropout = -1;  // Index of a rate; if above 0, the operator draws from its own state.
  bool random = false;
  bool shape_only = false;     // Reads the geometry of its tensor arguments, never their content.
  bool uninitialized = false;  // Leaves some bytes of its results uninitialized.
  bool blank = false;          // Leaves all bytes to the caller, who may fill them by a pointer.
  bool shares = false;   // Its result shares its argument's memory until one of the two is written.
  bool stays = false;    // Its results must never be evicted.
  bool surgery = false;  // Lays a tensor over other memory, or resizes its storage.
  bool fresh = false;    // Some result is a tensor (no list) that is none of the arguments.
  bool itemwise = false;  // Does the same to each item of its lists, as `_foreach_add_` does.
  bool waits = false;     // Waits for other processes, and writes nothing itself.
  bool collective = false;
  bool listed = false;  // Returns a list of `returns` tensors (bind_compiled_region.cpp).
  // False: no call is recorded (`surgery`, `stays`, `obstacle`, or an argument we cannot keep).
  bool recordable = true;

  // True for an operator of another library (libraries.h).
  bool others = false;
  bool promised = false;           // Has torch's tag pt2_compliant_tag.
  const char* obstacle = nullptr;  // Why no call is ever recorded; null if some may be.
  mutable std::atomic<bool> ran = false;
  mutable std::atomic<bool> varies = false;  // In size, from call to call (small_results.h).
  mutable std::atomic<bool> gone = false;    // Python undefined the operator: `handle` is invalid.

  // Whether a call on top of `stack` draws random numbers from a state outside any generator.
  bool draws_elsewhere(const torch::jit::Stack& stack) const {
    return dropout >= 0 && stack[stack.size() - arguments + dropout].toDouble() > 0;
  }
  bool is(std::uint64_t mask, std::size_t argument) const { return mask >> argument & 1; }
};

const OperatorInfo& operator_info(const c10::OperatorHandle& op);

// Call when an operator is undefined: Python may then define another by its name.
void forget_operator(const c10::OperatorHandle& op);

// Returns whether the dispatcher may skip us: for views, and for composite operators, because we
// see the operators that they call.
bool passes_over_us(const c10::OperatorHandle& op);

// The key on which each operator has a kernel of ours: intercept/dispatch_key.h.
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;
void intercept(const OperatorInfo& info, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Whether torch tells us before it gives out a pointer to a storage's memory (from 2.13 on). If
// not, we can only watch the methods of torch.Tensor that hand out memory.
#if __has_include(<c10/core/StorageMaterializer.h>)
constexpr bool kSeesRawAccess = true;
#else
constexpr bool kSeesRawAccess = false;
#endif

}  // namespace dtr
