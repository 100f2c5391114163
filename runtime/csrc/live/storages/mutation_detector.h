// Finds undeclared writes, in debug mode. A recipe relies on its inputs, which must be as the
// operator read them. The dispatcher shows us all writes except those by raw pointers, NumPy arrays
// over the same memory, other processes, threads outside the scope, and operators whose schemas do
// not declare their writes.
//
// Throws if a checksum has changed. A constant is checked at each read after a recipe began to read
// it. An argument is checked after each operator that does not declare to write it. Torch's version
// counter would not do instead: it misses writes outside of torch, and counts changes of shape. It
// only serves the error's text, which says whether torch saw the write. The cost is a pass over all
// arguments of each operator, which only debug mode should pay.

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
  // An argument that the operator must not write, and its checksum before the operator runs.
  struct Seen {
    StoragePtr storage;
    std::uint64_t checksum;
  };
  using Arguments = c10::SmallVector<Seen, 8>;

  Arguments look(const OperatorInfo& info, const TensorArguments& arguments) const;
  // Throws c10::Error if an argument has changed since look().
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
  // Where a storage came from. While the weak pointer lives, no other storage gets its address.
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
