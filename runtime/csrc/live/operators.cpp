#include "runtime/csrc/live/operators.h"

#include <torch/library.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace dtr {
namespace {

using c10::FunctionSchema;
using c10::TypeKind;

bool contains(const std::unordered_set<std::string_view>& set, std::string_view name) {
  return set.find(name) != set.end();
}

// Storage surgery: the result is no function of the arguments' contents that a recipe could repeat.
const std::unordered_set<std::string_view> kStorageSurgery = {
    "aten::resize_",         "aten::resize_as_", "aten::set_",
    "aten::_resize_output_", "aten::set_data",   "aten::_lazy_clone"};

// Batch norm writes its running statistics, which few schemas say. In training its results do not
// depend on what was there, so a replay may write any memory instead (TensorArgument::scratch).
bool writes_running_statistics(std::string_view name) {
  static const std::unordered_set<std::string_view> names = {
      "aten::native_batch_norm",       "aten::cudnn_batch_norm",
      "aten::miopen_batch_norm",       "aten::_native_batch_norm_legit",
      "aten::_batch_norm_with_update", "aten::batch_norm_update_stats",
      "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts"};
  return contains(names, name);
}

bool reads_only_shapes(std::string_view name) {
  static const std::unordered_set<std::string_view> names = {
      "aten::empty_like", "aten::zeros_like", "aten::ones_like",    "aten::full_like",
      "aten::rand_like",  "aten::randn_like", "aten::randint_like", "aten::new_empty",
      "aten::new_zeros",  "aten::new_ones",   "aten::new_full",     "aten::new_empty_strided"};
  return contains(names, name);
}

bool holds_tensors(const c10::Type& type) {
  if (type.kind() == TypeKind::TensorType) return true;
  for (const auto& inner : type.containedTypes()) {
    if (holds_tensors(*inner)) return true;
  }
  return false;
}

// Whether a copy of the argument can be kept and used again: no Python object, no custom class, no
// live handle.
bool is_plain(const c10::Type& type) {
  switch (type.kind()) {
    case TypeKind::AnyType:
    case TypeKind::ClassType:
    case TypeKind::PyObjectType:
    case TypeKind::FunctionType:
    case TypeKind::InterfaceType:
    case TypeKind::StorageType:
    case TypeKind::StreamObjType:
    case TypeKind::DictType:
      return false;
    default:
      for (const auto& inner : type.containedTypes()) {
        if (!is_plain(*inner)) return false;
      }
      return true;
  }
}

bool is_pure_view(const FunctionSchema& schema) {
  if (schema.name() == "aten::_unsafe_view")
    return true;  // A view whose schema hides it from autograd.
  if (schema.returns().empty()) return false;
  for (const auto& argument : schema.arguments()) {
    if (argument.alias_info() && argument.alias_info()->isWrite()) return false;
  }
  for (const auto& result : schema.returns()) {
    if (!result.alias_info()) return false;
  }
  return true;
}

bool is_metadata_change(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::inplace_view) && !contains(kStorageSurgery, op.schema().name());
}

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

// An insert-only hash table of pointers. Readers probe it without a lock; there are a few thousand
// operators.
class Table {
 public:
  const OperatorInfo& at(const c10::OperatorHandle& op) {
    const FunctionSchema* key = &op.schema();
    std::size_t slot = hash(key);
    while (const Entry* entry = slots_[slot].load(std::memory_order_acquire)) {
      if (entry->key == key) return entry->info;
      slot = (slot + 1) % slots_.size();
    }
    return insert(key, op);
  }

 private:
  struct Entry {
    const FunctionSchema* key;
    OperatorInfo info;
  };

  static std::size_t hash(const void* key) {
    return (reinterpret_cast<std::uintptr_t>(key) * 0x9e3779b97f4a7c15) >> 49;
  }

  const OperatorInfo& insert(const FunctionSchema* key, const c10::OperatorHandle& op) {
    std::lock_guard<std::mutex> guard(mutex_);
    std::size_t slot = hash(key);
    while (const Entry* entry = slots_[slot].load(std::memory_order_relaxed)) {
      if (entry->key == key) return entry->info;
      slot = (slot + 1) % slots_.size();
    }
    TORCH_CHECK(++size_ < slots_.size() / 2, "dtr_alloc: more than ", slots_.size() / 2, " operators");
    const Entry* entry = new Entry{key, OperatorInfo(op)};
    slots_[slot].store(entry, std::memory_order_release);
    return entry->info;
  }

  std::array<std::atomic<const Entry*>, 1 << 15> slots_{};
  std::mutex mutex_;
  std::size_t size_ = 0;
};

Table& table() {
  static Table* table = new Table;
  return *table;
}

}  // namespace

OperatorInfo::OperatorInfo(const c10::OperatorHandle& op) : handle(op) {
  const FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  arguments = schema.arguments().size();
  returns = schema.returns().size();
  recordable = name.rfind("aten::", 0) == 0 && !contains(kStorageSurgery, name) && arguments <= 64;
  // The state of cuDNN's dropout is advanced by operators that do not say so.
  if (name == "aten::_cudnn_init_dropout_state") recordable = false;
  random = op.hasTag(at::Tag::nondeterministic_seeded);
  shape_only = reads_only_shapes(name);
  blank = name.rfind("aten::empty", 0) == 0 || name.rfind("aten::new_empty", 0) == 0;
  shares = name == "aten::_lazy_clone";
  uninitialized = blank || name == "aten::mkldnn_rnn_layer";  // The latter in its workspace.
  // Before torch 2.13 nobody tells us when the program fills such memory through a raw pointer.
  if (blank && !kSeesRawAccess) recordable = false;
  for (std::size_t i = 0; i < arguments && i < 64; ++i) {
    const auto& argument = schema.arguments()[i];
    const c10::Type& type = *argument.type();
    std::uint64_t bit = std::uint64_t{1} << i;
    if (holds_tensors(type)) {
      tensors |= bit;
      const c10::Type* list = &type;
      if (list->kind() == TypeKind::OptionalType) list = list->containedTypes()[0].get();
      if (list->kind() == TypeKind::ListType) {
        lists |= bit;
        if (list->containedTypes()[0]->kind() == TypeKind::OptionalType) optional_lists |= bit;
      }
    } else if (!is_plain(type)) {
      recordable = false;
    }
    if (argument.alias_info() && argument.alias_info()->isWrite()) writes |= bit;
    if (writes_running_statistics(name) && argument.name() == "training") {
      training = static_cast<std::int32_t>(i);
    }
    // cuDNN keeps the state of its dropout in device memory and advances it there.
    if (name == "aten::_cudnn_rnn" && argument.name() == "dropout") {
      dropout = static_cast<std::int32_t>(i);
    }
    bool running = argument.name() == "running_mean" || argument.name() == "running_var";
    if (running && writes_running_statistics(name)) {
      writes |= bit;
      statistics |= bit;
    }
    const c10::Type* plain = &type;
    if (plain->kind() == TypeKind::OptionalType) plain = plain->containedTypes()[0].get();
    if (plain->kind() == TypeKind::GeneratorType) generator = static_cast<std::int32_t>(i);
    if (plain->kind() == TypeKind::DeviceObjType) device = static_cast<std::int32_t>(i);
  }
  for (const auto& result : schema.returns()) {
    fresh |= result.type()->kind() == TypeKind::TensorType && !result.alias_info();
  }
  // Collectives write what their schemas say they read, some of it after they have returned.
  if (name.rfind("c10d::", 0) == 0 || name.rfind("_c10d_functional::", 0) == 0) writes = tensors;
  // Overloads that write their result somewhere, or read a second tensor, read more than a shape.
  shape_only &= writes == 0 && __builtin_popcountll(tensors) == 1;
}

const OperatorInfo& operator_info(const c10::OperatorHandle& op) { return table().at(op); }

void register_interception() {
  using torch::Library;
  static auto* libraries = new std::vector<Library>;  // Registrations live as long as the process.
  libraries->emplace_back(Library::IMPL, "_", kKey, __FILE__, __LINE__);
  libraries->back().fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
  libraries->emplace_back(Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = dispatcher.findSchema(name);
    if (!op) continue;
    if (!is_pure_view(op->schema()) && !is_metadata_change(*op) && !is_composite(*op)) continue;
    std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    libraries->back().impl((name.name.substr(6) + overload).c_str(),
                           torch::CppFunction::makeFallthrough());
  }
}

}  // namespace dtr
