#include "runtime/csrc/live/storages/mutation_detector.h"

#include <c10/util/Exception.h>

#include "runtime/csrc/live/machine/device.h"
#include "runtime/csrc/live/storages/checksum.h"

namespace dtr {
namespace {

constexpr char kRemedy[] =
    "; write it with torch's operators in the scope, or give the operators that read it a clone()";

}  // namespace

MutationDetector::Arguments MutationDetector::look(const OperatorInfo& info,
                                                   const TensorArguments& arguments) const {
  Arguments seen;
  if (info.shape_only) return seen;
  for (const TensorArgument& argument : arguments) {
    bool written = !argument.tensor->is_cpu();
    for (const TensorArgument& other : arguments) {
      written |= other.written && other.storage == argument.storage;
    }
    if (written) continue;
    seen.push_back({share(argument.storage), checksum(argument.storage)});
  }
  return seen;
}

void MutationDetector::compare(const OperatorInfo& info, const Arguments& before) const {
  for (const Seen& seen : before) {
    if (checksum(seen.storage.get()) == seen.checksum) continue;
    std::lock_guard guard(mutex_);
    TORCH_CHECK(false, "debug mode: ", info.name,
                " wrote a tensor that its schema says it only reads: ", origin(seen.storage.get()),
                "; declare it (mutates_args of a custom operator, `Tensor(a!)` in a schema)");
  }
}

void MutationDetector::made(const c10::TensorImpl& result, const OperatorInfo& by) {
  if (!result.has_storage() || !result.unsafe_storage()) return;
  c10::StorageImpl* storage = storage_of(result);
  std::lock_guard guard(mutex_);
  if (origins_.size() >= sweep_at_) {
    std::erase_if(origins_, [](const auto& origin) { return origin.second.storage.expired(); });
    sweep_at_ = 2 * origins_.size() + 4096;
  }
  std::string text = c10::str("the result of ", by.name, ", ", result.dtype());
  if (is_dense(result)) text += c10::str(" ", result.sizes());  // A nested tensor tells no sizes.
  origins_.emplace(
      storage, Origin{c10::weak_intrusive_ptr<c10::StorageImpl>(share(storage)), std::move(text)});
}

std::string MutationDetector::origin(const c10::StorageImpl* storage) const {
  auto found = origins_.find(storage);
  if (found != origins_.end()) return found->second.text;
  return c10::str(
      "made by no operator of the scope (made before it, or by a library: from_numpy, "
      "DLPack, a mapped file), ",
      storage->nbytes(), " bytes");
}

void MutationDetector::watch(const Value& constant, const c10::TensorImpl* tensor) {
  std::lock_guard guard(mutex_);
  if (watched_.count(&constant)) return;
  auto* storage = static_cast<const c10::StorageImpl*>(constant.data);
  Watched watched{checksum(storage), std::nullopt, 0, origin(storage)};
  if (tensor && tensor->version_counter().enabled()) {
    watched.counter = tensor->version_counter();
    watched.version = watched.counter->current_version();
  }
  watched_.emplace(&constant, std::move(watched));
}

void MutationDetector::forget(const Value& constant) {
  std::lock_guard guard(mutex_);
  watched_.erase(&constant);
}

void MutationDetector::verify(const Value& constant, const OperatorInfo& reader) const {
  std::lock_guard guard(mutex_);
  auto found = watched_.find(&constant);
  if (found == watched_.end()) return;
  const Watched& watched = found->second;
  if (checksum(static_cast<const c10::StorageImpl*>(constant.data)) == watched.checksum) return;
  bool counted = watched.counter && watched.counter->current_version() != watched.version;
  TORCH_CHECK(false, "debug mode: ", reader.name,
              " reads a tensor that was written after recipes began to read it, and nobody said so: ",
              watched.origin, "; ",
              counted ? "torch counted the write, so an operator made it in a thread that is not in "
                        "the scope"
                      : "torch counted no write, so it was made through a NumPy array, a pointer, or "
                        "by another process",
              kRemedy);
}

}  // namespace dtr
