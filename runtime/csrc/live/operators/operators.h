// What the runtime must know of an operator before it can record it, worked out once from its
// schema.
//
// Pure views and composite operators never reach the runtime: the dispatcher skips us at no cost
// (intercept/dispatch_key.h). Every other operator is looked up by the address of its schema in a
// table that readers search without a lock. What no schema states stands in the tables of
// operators.cpp, a row each: undeclared writes, operators that read only the shape of their
// arguments, and more.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace dtr {

struct OperatorInfo {
  explicit OperatorInfo(const c10::OperatorHandle& op);

  const c10::OperatorHandle handle;
  std::string name;
  std::uint32_t arguments = 0;
  std::uint32_t returns = 0;
  std::uint64_t tensors = 0;         // Bit i: argument i is or may hold tensors.
  std::uint64_t lists = 0;           // Bit i: ... in a list.
  std::uint64_t optional_lists = 0;  // Bit i: ... whose items may be None.
  std::uint64_t writes = 0;          // Bit i: argument i is written.
  std::uint64_t statistics = 0;      // Bit i: ... and no result depends on it (kRunningStatistics).
  std::int32_t generator = -1;       // Index of the Generator argument.
  std::int32_t device = -1;          // Index of the Device argument.
  std::int32_t training = -1;        // Index of the flag to write them; -1: always.
  std::int32_t dropout = -1;  // Index of a rate above which it draws from a state of its own.
  bool random = false;
  bool unordered = false;         // Adds in an order that differs in each run,
  std::int32_t accumulates = -1;  // where the flag of this index says so; -1: always.
  bool shape_only = false;     // Reads the geometry of its tensor arguments, never their content.
  bool uninitialized = false;  // Leaves bytes of its results as they happen to be.
  bool blank = false;          // ... all of them, for the caller to fill, perhaps by a raw pointer.
  bool shares = false;   // Its result shares its argument's memory until one of them is written.
  bool stays = false;    // Its results may not leave memory.
  bool surgery = false;  // Lays a tensor over other memory, or changes its size.
  bool fresh = false;    // May return a tensor, not a list of them, that is none of its arguments.
  bool pointwise = false;  // Makes one item of each place of its broadcast arguments.
  bool itemwise = false;   // Does the same to each item of its lists (itemwise.cpp).
  bool waits = false;      // For other processes, and writes nothing itself.
  bool collective = false;
  bool listed = false;  // Returns a list, of so many tensors (bind_compiled_region.cpp).
  // False: outputs are constants (arguments we cannot keep, storage surgery, an obstacle below).
  bool recordable = true;

  // Of another library, not torch's own: libraries.h.
  bool others = false;
  bool promised = false;           // By pt2_compliant_tag.
  const char* obstacle = nullptr;  // Why no call of it is ever recorded.
  mutable std::atomic<bool> ran = false;
  mutable std::atomic<bool> gone = false;  // It was undefined: the handle leads nowhere.

  // Whether a call on top of `stack` draws numbers from a state that no generator holds.
  bool draws_elsewhere(const torch::jit::Stack& stack) const {
    return dropout >= 0 && stack[stack.size() - arguments + dropout].toDouble() > 0;
  }
  // Whether a call on top of `stack`, on the host, may have other bits when it is run again, but
  // for deterministic mode.
  bool differs_in_each_run(const torch::jit::Stack& stack) const;
  bool is(std::uint64_t mask, std::size_t argument) const { return mask >> argument & 1; }
};

const OperatorInfo& operator_info(const c10::OperatorHandle& op);

// Python can undefine an operator, and define another by its name.
void forget_operator(const c10::OperatorHandle& op);

// Whether the dispatcher may skip us: views, and what is made of operators that we see.
bool passes_over_us(const c10::OperatorHandle& op);

// The key on which each operator has a kernel of ours: intercept/dispatch_key.h.
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;
void intercept(const OperatorInfo& info, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Whether torch tells us when a pointer to a storage is about to leave it (from 2.13 on). Without,
// only the methods of torch.Tensor that hand out memory can be watched.
#if __has_include(<c10/core/StorageMaterializer.h>)
constexpr bool kSeesRawAccess = true;
#else
constexpr bool kSeesRawAccess = false;
#endif

}  // namespace dtr
