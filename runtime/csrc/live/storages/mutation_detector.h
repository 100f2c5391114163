// Finds undeclared writes, in debug mode. A recipe trusts that its inputs are as the operator read
// them. The dispatcher shows us all writes, except those through NumPy arrays over the same memory,
// raw pointers, other processes, threads outside the scope, and operators whose schemas do not
// declare their writes.
//
// Compares checksums, and throws if one has changed: of a constant, whenever it is read after a
// recipe began to read it; of an argument, before and after an operator that does not declare to
// write it. Torch's version counter would not do: it misses writes outside of torch, and counts
// changes of shape. It is read only for the error's text, which says whether torch saw the write.
// The cost is a pass over every argument of every operator, so this is a mode of its own.

#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "runtime/csrc/live/recipes/recipe.h"

namespace dtr {

class MutationDetector {
 public:
  // An argument that the operator does not declare to write, before the operator runs.
  struct Seen {
    StoragePtr storage;
    std::uint64_t checksum;
  };
  using Arguments = c10::SmallVector<Seen, 8>;

  Arguments look(const OperatorInfo& info, const TensorArguments& arguments) const;
  // Throws c10::Error if an argument has changed.
  void compare(const OperatorInfo& info, const Arguments& before) const;

  void made(const c10::TensorImpl& result, const OperatorInfo& by);
  void watch(const Value& constant, const c10::TensorImpl* tensor);
  void forget(const Value& constant);
  // Throws c10::Error if a watched constant has changed.
  void verify(const Value& constant, const OperatorInfo& reader) const;

 private:
  struct Watched {
    std::uint64_t checksum;
    std::optional<c10::VariableVersion> counter;
    std::uint32_t version;
    std::string origin;
  };
  // While the weak pointer lives, no other storage gets the same address.
  struct Origin {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::string text;
  };

  std::string origin(const c10::StorageImpl* storage) const;

  mutable std::mutex mutex_;
  std::unordered_map<const Value*, Watched> watched_;
  std::unordered_map<const c10::StorageImpl*, Origin> origins_;
  std::size_t sweep_at_ = 4096;
};

}  // namespace dtr
