#include "runtime/csrc/live/operators/operators.h"

#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <mutex>
#include <string_view>
#include <vector>

#include "runtime/csrc/live/operators/libraries.h"
#include "runtime/csrc/live/operators/pointer_readers.h"

namespace dtr {
namespace {

using c10::FunctionSchema;
using c10::TypeKind;

// What no schema says of torch's operators: one row each. Names are without the overload.

// The result is no function of the arguments' contents that a recipe could repeat.
constexpr std::string_view kStorageSurgery[] = {"aten::resize_",  "aten::resize_as_",
                                                "aten::set_",     "aten::_resize_output_",
                                                "aten::set_data", "aten::_lazy_clone"};

// Operators that read the geometry of their one tensor argument and never its content.
constexpr std::string_view kReadsOnlyShapes[] = {
    "aten::empty_like", "aten::zeros_like", "aten::ones_like",    "aten::full_like",
    "aten::rand_like",  "aten::randn_like", "aten::randint_like", "aten::new_empty",
    "aten::new_zeros",  "aten::new_ones",   "aten::new_full",     "aten::new_empty_strided"};

// Operators whose results are memory for the caller to fill. Overloads and variants begin so, too.
constexpr std::string_view kBlankPrefixes[] = {"aten::empty", "aten::new_empty"};

// Operators that do the same to each item of their lists.
constexpr std::string_view kItemwisePrefixes[] = {"aten::_foreach_", "aten::_fused_",
                                                  "aten::_amp_foreach_"};

// Operators that leave bytes of a result as they happen to be, besides the blank ones: a workspace,
// what no path through a table of probabilities reaches, the noise of what is not negative.
constexpr std::string_view kUninitialized[] = {"aten::mkldnn_rnn_layer", "aten::_ctc_loss",
                                               "aten::rrelu_with_noise", "aten::rrelu_with_noise_"};

// Results that must stay where they are. Other operators advance the state of cuDNN's dropout
// later, and do not say so. Before torch 2.13 a recurrent layer takes the address of its weights
// unseen.
constexpr std::string_view kStays[] = {"aten::_cudnn_init_dropout_state",
                                       "aten::_cudnn_rnn_flatten_weight"};

// Collectives write what their schemas say they read, some of it after they have returned.
constexpr std::string_view kWritingPrefixes[] = {"c10d::", "_c10d_functional::"};

// It returns when a collective is over, whose result it is given.
constexpr std::string_view kWaits = "_c10d_functional::wait_tensor";

// What the results have to do with the old content of an argument that the operator writes.
enum class OldContent { kRead, kIgnored };

// An argument that an operator writes although its schema says that it reads it, or though its
// schema does not say when. To add an operator, add a row for each such argument. Where its results
// read the old content, or in doubt, that is {"aten::name", "argument", "", OldContent::kRead}.
//
// kIgnored is the rule for batch norm's running statistics: in training no result depends on them,
// so a replay may write any memory instead, and they never get a recipe and are never copied.
struct UndeclaredWrite {
  std::string_view name;
  std::string_view argument;
  // A bool argument: without it an ignored one is only read. Empty: it is always written.
  std::string_view flag;
  OldContent old_content;
};
constexpr UndeclaredWrite kUndeclaredWrites[] = {
    {"aten::native_batch_norm", "running_mean", "training", OldContent::kIgnored},
    {"aten::native_batch_norm", "running_var", "training", OldContent::kIgnored},
    {"aten::cudnn_batch_norm", "running_mean", "training", OldContent::kIgnored},
    {"aten::cudnn_batch_norm", "running_var", "training", OldContent::kIgnored},
    {"aten::miopen_batch_norm", "running_mean", "training", OldContent::kIgnored},
    {"aten::miopen_batch_norm", "running_var", "training", OldContent::kIgnored},
    {"aten::_native_batch_norm_legit", "running_mean", "training", OldContent::kIgnored},
    {"aten::_native_batch_norm_legit", "running_var", "training", OldContent::kIgnored},
    {"aten::_batch_norm_with_update", "running_mean", "", OldContent::kIgnored},
    {"aten::_batch_norm_with_update", "running_var", "", OldContent::kIgnored},
    {"aten::batch_norm_update_stats", "running_mean", "", OldContent::kIgnored},
    {"aten::batch_norm_update_stats", "running_var", "", OldContent::kIgnored},
    {"aten::batch_norm_gather_stats", "running_mean", "", OldContent::kIgnored},
    {"aten::batch_norm_gather_stats", "running_var", "", OldContent::kIgnored},
    {"aten::batch_norm_gather_stats_with_counts", "running_mean", "", OldContent::kIgnored},
    {"aten::batch_norm_gather_stats_with_counts", "running_var", "", OldContent::kIgnored},
    // What the forward pass left there is read, and then written over (torch 2.13, oneDNN).
    {"aten::mkldnn_rnn_layer_backward", "workspace", "", OldContent::kRead},
    {"aten::_saturate_weight_to_fp16", "weight", "", OldContent::kRead},
};

// A rate above zero makes the operator draw from a state in device memory, which it advances there.
struct UndeclaredDraw {
  std::string_view name;
  std::string_view rate;
};
constexpr UndeclaredDraw kUndeclaredDraws[] = {{"aten::_cudnn_rnn", "dropout"}};

// Several threads add to one element, or write it, in the order in which they come. So bits differ
// from run to run, but where the thread computes alone or torch was told to be deterministic. Seen
// with torch 2.13 on the host (perf/survey/repeats.py); all else that adds up there, such as
// scatter_add and index_add, repeats itself.
struct Unordered {
  std::string_view name;
  std::string_view flag;  // A bool argument: without it nothing is added. Empty: it always is.
};
constexpr Unordered kUnordered[] = {
    {"aten::index_put_", "accumulate"},
    {"aten::index_put", "accumulate"},
    {"aten::_index_put_impl_", "accumulate"},
    {"aten::_index_put_impl", "accumulate"},
    {"aten::_unsafe_index_put", "accumulate"},
    {"aten::put_", "accumulate"},
    {"aten::put", "accumulate"},
    {"aten::_unsafe_masked_index_put_accumulate", ""},
    {"aten::max_unpool2d", ""},
    {"aten::max_unpool3d", ""},
};

template <std::size_t size>
bool contains(const std::string_view (&names)[size], std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

template <std::size_t size>
bool begins_with_one_of(const std::string_view (&prefixes)[size], std::string_view name) {
  return std::ranges::any_of(prefixes, [&](auto prefix) { return name.starts_with(prefix); });
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

// A type, or what an optional of it is optional.
const c10::Type& without_optional(const c10::Type& type) {
  return type.kind() == TypeKind::OptionalType ? *type.containedTypes()[0] : type;
}

bool is_storage(const c10::Argument& argument) {
  return without_optional(*argument.type()).kind() == TypeKind::StorageType;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

bool is_pure_view(const FunctionSchema& schema) {
  if (schema.name() == "aten::_unsafe_view")
    return true;  // A view whose schema hides it from autograd.
  if (schema.returns().empty()) return false;
  for (const auto& argument : schema.arguments()) {
    if (is_written(argument)) return false;
  }
  for (const auto& result : schema.returns()) {
    if (!result.alias_info()) return false;
  }
  return true;
}

bool is_metadata_change(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::inplace_view) && !contains(kStorageSurgery, op.schema().name());
}

// Whether calls of the operator can be recorded, as far as its schema and the tables tell.
bool is_recordable(const FunctionSchema& schema) {
  const std::string& name = schema.name();
  if (contains(kStorageSurgery, name) || contains(kStays, name)) return false;
  // Before torch 2.13 nobody tells us when the program fills such memory through a raw pointer.
  if (!kSeesRawAccess && begins_with_one_of(kBlankPrefixes, name)) return false;
  return std::ranges::all_of(schema.arguments(), [](const c10::Argument& argument) {
    return holds_tensors(*argument.type()) || is_plain(*argument.type());
  });
}

// What the schema says of an argument. There is a bit for each: torch allows no more than 64.
void read_declared(OperatorInfo& info, std::size_t i, const c10::Argument& argument) {
  const c10::Type& type = without_optional(*argument.type());
  const std::uint64_t bit = std::uint64_t{1} << i;
  if (holds_tensors(type)) {
    info.tensors |= bit;
    if (type.kind() == TypeKind::ListType) {
      info.lists |= bit;
      const bool optional = type.containedTypes()[0]->kind() == TypeKind::OptionalType;
      if (optional) info.optional_lists |= bit;
    }
  }
  if (is_written(argument)) info.writes |= bit;
  if (type.kind() == TypeKind::GeneratorType) info.generator = static_cast<std::int32_t>(i);
  if (type.kind() == TypeKind::DeviceObjType) info.device = static_cast<std::int32_t>(i);
}

// -1 where there is none of that name.
std::int32_t index_of(const FunctionSchema& schema, std::string_view argument) {
  const auto index = schema.argumentIndexWithName(argument);
  return index ? *index : -1;
}

// What the tables say of the arguments.
void add_undeclared(OperatorInfo& info, const FunctionSchema& schema) {
  const std::string& name = schema.name();
  for (const UndeclaredWrite& row : kUndeclaredWrites) {
    const std::int32_t written = row.name == name ? index_of(schema, row.argument) : -1;
    if (written < 0) continue;
    const std::uint64_t bit = std::uint64_t{1} << written;
    info.writes |= bit;
    if (row.old_content == OldContent::kRead) continue;
    info.statistics |= bit;
    info.training = index_of(schema, row.flag);
  }
  for (const UndeclaredDraw& row : kUndeclaredDraws) {
    if (row.name == name) info.dropout = index_of(schema, row.rate);
  }
  for (const Unordered& row : kUnordered) {
    if (row.name != name) continue;
    info.unordered = true;
    info.accumulates = index_of(schema, row.flag);
  }
  if (begins_with_one_of(kWritingPrefixes, name)) info.writes = info.tensors;
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

  // It is being undefined. Another may have its schema where this one's was.
  void forget(const c10::OperatorHandle& op) {
    const FunctionSchema* key = &op.schema();
    std::lock_guard<std::mutex> guard(mutex_);
    std::size_t slot = hash(key);
    while (Entry* entry = slots_[slot].load(std::memory_order_relaxed)) {
      if (entry->key == key) {
        entry->info.gone = true;
        entry->key = nullptr;
      }
      slot = (slot + 1) % slots_.size();
    }
  }

 private:
  struct Entry {
    std::atomic<const FunctionSchema*> key;  // Null: of one that was undefined.
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
    Entry* entry = new Entry{key, OperatorInfo(op)};
    slots_[slot].store(entry, std::memory_order_release);
    return entry->info;
  }

  std::array<std::atomic<Entry*>, 1 << 15> slots_{};
  std::mutex mutex_;
  std::size_t size_ = 0;
};

Table& table() {
  static Table* table = new Table;
  return *table;
}

// Python can undefine an operator, and define another by its name.
class Undefined final : public c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override { table().forget(op); }
};

// Not where a tensor has a number for each item, or where several lists are returned.
bool is_itemwise(const FunctionSchema& schema) {
  if (!begins_with_one_of(kItemwisePrefixes, schema.name()) || schema.returns().size() > 1) {
    return false;
  }
  const auto& arguments = schema.arguments();
  const auto is_list = [](const c10::Argument& one) {
    return one.type()->kind() == TypeKind::ListType;
  };
  const auto is_tensor_of_numbers = [](const c10::Argument& one) {
    return one.name() == "scalars" && one.type()->kind() == TypeKind::TensorType;
  };
  return !arguments.empty() && is_list(arguments[0]) &&
         std::ranges::none_of(arguments, is_tensor_of_numbers);
}

}  // namespace

OperatorInfo::OperatorInfo(const c10::OperatorHandle& op)
    : handle(op), name(c10::toString(op.operator_name())) {
  const FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  arguments = schema.arguments().size();
  returns = schema.returns().size();
  random = op.hasTag(at::Tag::nondeterministic_seeded);
  pointwise = op.hasTag(at::Tag::pointwise);
  blank = begins_with_one_of(kBlankPrefixes, name);
  uninitialized = blank || contains(kUninitialized, name);
  shares = name == "aten::_lazy_clone";
  stays = contains(kStays, name);
  surgery = contains(kStorageSurgery, name) || std::ranges::any_of(schema.arguments(), is_storage);
  itemwise = is_itemwise(schema);
  waits = name == kWaits;
  collective = is_collective(schema);
  others = is_of_library(schema);
  promised = op.hasTag(at::Tag::pt2_compliant_tag);
  if (others) obstacle = obstacle_of(schema);
  recordable = is_recordable(schema) && !obstacle;
  if (others && !recordable && !obstacle) obstacle = "takes an object that no recipe can keep";
  for (std::size_t i = 0; i < arguments; ++i) read_declared(*this, i, schema.arguments()[i]);
  add_undeclared(*this, schema);
  for (const auto& result : schema.returns()) {
    fresh |= result.type()->kind() == TypeKind::TensorType && !result.alias_info();
  }
  // Overloads that write their result somewhere, or read a second tensor, read more than a shape.
  shape_only =
      contains(kReadsOnlyShapes, name) && writes == 0 && __builtin_popcountll(tensors) == 1;
}

bool OperatorInfo::differs_in_each_run(const torch::jit::Stack& stack) const {
  if (!unordered) return false;
  const bool adds = accumulates < 0 || stack[stack.size() - arguments + accumulates].toBool();
  return adds && at::get_num_threads() > 1;
}

const OperatorInfo& operator_info(const c10::OperatorHandle& op) { return table().at(op); }

void register_interception() {
  using torch::Library;
  static auto* libraries = new std::vector<Library>;  // Registrations live as long as the process.
  libraries->emplace_back(Library::IMPL, "_", kKey, __FILE__, __LINE__);
  libraries->back().fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
  libraries->emplace_back(Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* undefined = new c10::RegistrationHandleRAII(
      dispatcher.addRegistrationListener(std::make_unique<Undefined>()));
  static_cast<void>(undefined);
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    auto op = dispatcher.findSchema(name);
    if (!op) continue;
    if (pointer_reader(*op)) continue;
    if (!is_pure_view(op->schema()) && !is_metadata_change(*op) && !is_composite(*op)) continue;
    std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    libraries->back().impl((name.name.substr(6) + overload).c_str(),
                           torch::CppFunction::makeFallthrough());
  }
}

}  // namespace dtr
