// A graph that torch.compile made, as one operator: `dtr_alloc::region`.
//
// The dispatcher sees a call of the graph as it sees any operator, so the runtime records it: its
// results, saved activations among them, can be evicted and computed again. Two things differ. What
// an operator tells by its schema (how many results, what it writes, whether it draws random
// numbers), each region has of its own: an OperatorInfo, with a name and hence with costs of its
// own. And the first argument is the code itself, so a recipe owns what it must run again, and the
// code goes with the last recipe and the graph. The code is Python's; bind_compiled_region.cpp
// calls it. Costs some microseconds for each call.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/csrc/live/operators/operators.h"

namespace dtr {

struct RegionTraits {
  std::string name;
  std::uint32_t results = 0;
  bool writes = false;
  bool random = false;
  auto operator<=>(const RegionTraits&) const = default;
};

struct CompiledRegion;

class CompiledCode : public torch::CustomClassHolder {
 public:
  explicit CompiledCode(std::shared_ptr<CompiledRegion> region) : region_(std::move(region)) {}

  CompiledRegion& region() const { return *region_; }
  // Runs the graph and lets go of the arguments as the graph does. Of each result the tensor, and
  // an undefined one for what is no tensor or belongs to somebody else besides.
  virtual std::vector<at::Tensor> run(std::vector<c10::IValue> arguments) = 0;
  // The last recipe is gone. The region has a weak reference to this, which must not keep it.
  void release_resources() override { region_.reset(); }

 private:
  std::shared_ptr<CompiledRegion> region_;
};

// What stays the same from call to call. It belongs to the graph, and does not own it.
struct CompiledRegion {
  CompiledRegion(const RegionTraits& traits, std::vector<std::size_t> written);

  const OperatorInfo& info;                // For as long as the process: logs and traces name it.
  const std::vector<std::size_t> written;  // Positions among the arguments.
  std::atomic<bool> ran = false;
  c10::weak_intrusive_ptr<CompiledCode> code;  // That recipes own; guarded by Python's lock.
};

// The arguments of a call, in the order of the graph's: tensors and integers.
struct RegionArguments {
  void add(at::Tensor tensor, bool written);
  void add(std::int64_t number);

  c10::List<at::Tensor> read, written;
  c10::List<std::int64_t> layout;  // A kind for each, of an integer its value too.
};

// Through the dispatcher. Throws what the code throws, and torch.OutOfMemoryError.
void call_region(c10::intrusive_ptr<CompiledCode> code, RegionArguments arguments);

void register_region_operator();

}  // namespace dtr
