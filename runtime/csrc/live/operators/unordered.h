// Operators that may give other bits in each run: several threads add to one element, or write it,
// in the order in which they come. A recomputed result would be another value than the one that the
// program has seen, and a program that branches on it, such as a router of experts, could take
// another branch. So such results stay in memory, unless torch's deterministic mode gives the
// operator an order.
//
// Sources. On the host: runs with torch 2.13 (perf/survey/repeats.py), in which all others that add
// up, such as scatter_add and index_add, gave equal bits. On a device: the documentation of
// torch.use_deterministic_algorithms (torch 2.15), and operators with similar kernels: kthvalue,
// products and logarithms of sums along a dimension, attention backward. We leave out convolutions,
// which it names: cuDNN's repeat themselves forward; backward we trust cuDNN to choose an algorithm
// that does, as it did in all models measured (docs/exactness.md).

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
    kSums,            // Sums of real numbers depend on the order, sums of integers do not.
    kPlaces,          // The last to write an element wins.
    kPlacesOrRepeats  // Like kPlaces, but repeats if the argument `accumulate` is set.
  };

 private:
  bool on_host_ = false;
  Order on_device_ = Order::kRepeats;
  bool has_variant_ = false;       // Deterministic mode gives it an order, instead of an error.
  std::int32_t accumulates_ = -1;  // Index of the flag `accumulate`.
  std::int32_t casts_ = -1;        // Index of a type to sum in, which may be None.
};

}  // namespace dtr
