// Debug mode: finds writes that nobody declared. A recipe trusts that what it reads is what the
// operator read. The dispatcher tells us who writes, but for NumPy arrays over the same memory, raw
// pointers, other processes, threads outside the scope, and operators that write an argument
// without saying so.
//
// Contents are compared by a checksum: of each constant when a recipe begins to read it and
// whenever one reads it again, of each argument before and after an operator that does not say that
// it writes it. A version counter alone would not do: it counts no write past torch, and counts
// changes of shape. It tells in the message which of the two it was. The cost is a pass over every
// argument for every operator, hence a mode of its own.

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
  // An argument that the operator does not say it writes, before it runs.
  struct Seen {
    StoragePtr storage;
    std::uint64_t checksum;
  };
  using Arguments = c10::SmallVector<Seen, 8>;

  Arguments look(const OperatorInfo& info, const TensorArguments& arguments) const;
  // Throws std::runtime_error where an argument is not what it was.
  void compare(const OperatorInfo& info, const Arguments& before) const;

  void made(const c10::TensorImpl& result, const OperatorInfo& by);
  void watch(const Value& constant, const c10::TensorImpl* tensor);
  void forget(const Value& constant);
  // Throws std::runtime_error where a watched constant is not what it was.
  void verify(const Value& constant, const OperatorInfo& reader) const;

 private:
  struct Watched {
    std::uint64_t checksum;
    std::optional<c10::VariableVersion> counter;
    std::uint32_t version;
    std::string origin;
  };
  // A weak pointer keeps the address from being given to another storage.
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
