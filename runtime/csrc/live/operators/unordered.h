// Operators that may give other bits in each run: several threads add to one element, or write it,
// in the order in which they come. A recomputed result would be another value than the one that the
// program has seen, and a program that branches on it, such as a router of experts, could take
// another branch. So such results stay in memory, unless torch's deterministic mode gives the
// operator an order.
//
// Sources: on the host what was seen with torch 2.13 (perf/survey/repeats.py); all else that adds
// up there, such as scatter_add and index_add, repeats itself. On a device the documentation of
// torch.use_deterministic_algorithms (torch 2.15), and what its kernels share with those that it
// names: kthvalue, products and logarithms of sums along a dimension, attention backward. The list
// also names convolutions: those of cuDNN repeat themselves forward; backward we trust it to choose
// such an algorithm, as it did in all models that were measured (docs/exactness.md).

#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>

#include "runtime/csrc/live/machine/switches.h"

namespace c10 {
struct FunctionSchema;
}

namespace dtr {

class Unordered {
 public:
  explicit Unordered(const c10::FunctionSchema& schema);
  bool ever() const { return on_host_ || on_device_ != Order::kRepeats; }
  // Whether a call with these arguments may give other bits in each run.
  bool differs(c10::ArrayRef<c10::IValue> arguments, bool on_device, DeterministicMode mode) const;

  enum class Order : std::uint8_t {
    kRepeats,
    kSums,            // The sums of real numbers depend on it; those of integers do not.
    kPlaces,          // The last to write an element wins.
    kPlacesOrRepeats  // The same, unless the argument `accumulate` is set.
  };

 private:
  bool on_host_ = false;
  Order on_device_ = Order::kRepeats;
  bool has_variant_ = false;       // Deterministic mode changes it, and does not only refuse it.
  std::int32_t accumulates_ = -1;  // Index of the flag `accumulate`.
  std::int32_t casts_ = -1;        // Index of a type to sum in, which may be None.
};

}  // namespace dtr
