#include "runtime/csrc/live/operators/operators.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <string_view>
#include <utility>
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

// It has torch's tag for drawing, as all attention has, but refuses any dropout (torch 2.11 to
// 2.15).
constexpr std::string_view kNeverDraws = "aten::_scaled_dot_product_flash_attention_for_cpu";

// A row of the next tables: an operator, and one of its arguments.
struct Row {
  std::string_view name;
  std::string_view argument;
};

// An argument that an operator writes although its schema says that it reads it. To add an
// operator, add a row for each such argument.
constexpr Row kUndeclaredWrites[] = {
    // What the forward pass left there is read, and then written over (torch 2.13, oneDNN).
    {"aten::mkldnn_rnn_layer_backward", "workspace"},
    {"aten::_saturate_weight_to_fp16", "weight"},
};

// Batch norm writes its running statistics, `running_mean` and `running_var`, and its schema does
// not say when. In training no result depends on them, so a replay may write any memory instead,
// and they never get a recipe and are never copied. The argument is a flag: without it they are
// only read. Empty: they are always written.
constexpr Row kRunningStatistics[] = {
    {"aten::native_batch_norm", "training"}, {"aten::cudnn_batch_norm", "training"},
    {"aten::miopen_batch_norm", "training"}, {"aten::_native_batch_norm_legit", "training"},
    {"aten::_batch_norm_with_update", ""},   {"aten::batch_norm_update_stats", ""},
    {"aten::batch_norm_gather_stats", ""},   {"aten::batch_norm_gather_stats_with_counts", ""},
};

// A rate above zero makes the operator draw from a state in device memory, which it advances there.
constexpr Row kUndeclaredDraws[] = {{"aten::_cudnn_rnn", "dropout"}};

template <std::size_t size>
const Row* row_of(const Row (&rows)[size], std::string_view name) {
  const Row* row = std::ranges::find(rows, name, &Row::name);
  return row == std::end(rows) ? nullptr : row;
}

template <std::size_t size>
bool contains(const std::string_view (&names)[size], std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

template <std::size_t size>
bool begins_with_one_of(const std::string_view (&prefixes)[size], std::string_view name) {
  return std::ranges::any_of(prefixes, [&](auto prefix) { return name.starts_with(prefix); });
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
      return std::ranges::all_of(type.containedTypes(),
                                 [](const auto& inner) { return is_plain(*inner); });
  }
}

bool is_storage(const c10::Argument& argument) {
  return inside(*argument.type(), TypeKind::OptionalType).kind() == TypeKind::StorageType;
}

bool is_pure_view(const FunctionSchema& schema) {
  if (schema.name() == "aten::_unsafe_view") return true;  // Its schema hides it from autograd.
  return !schema.returns().empty() && std::ranges::none_of(schema.arguments(), is_written) &&
         std::ranges::all_of(schema.returns(), [](const auto& one) { return one.alias_info(); });
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
  const c10::Type& type = inside(*argument.type(), TypeKind::OptionalType);
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

// The bit of that argument; 0 where there is none of that name.
std::uint64_t bit_of(const FunctionSchema& schema, std::string_view argument) {
  const std::int32_t index = index_of(schema, argument);
  return index < 0 ? 0 : std::uint64_t{1} << index;
}

// What the tables say of the arguments.
void add_undeclared(OperatorInfo& info, const FunctionSchema& schema) {
  const std::string& name = schema.name();
  for (const Row& row : kUndeclaredWrites) {
    if (row.name == name) info.writes |= bit_of(schema, row.argument);
  }
  if (const Row* row = row_of(kRunningStatistics, name)) {
    info.statistics = bit_of(schema, "running_mean") | bit_of(schema, "running_var");
    info.writes |= info.statistics;
    info.training = index_of(schema, row->argument);
  }
  if (const Row* row = row_of(kUndeclaredDraws, name)) {
    info.dropout = index_of(schema, row->argument);
  }
  if (begins_with_one_of(kWritingPrefixes, name)) info.writes = info.tensors;
}

// An insert-only hash table of pointers. Readers probe it without a lock; there are a few thousand
// operators.
class Table {
 public:
  const OperatorInfo& at(const c10::OperatorHandle& op) {
    const auto [entry, slot] = find(&op.schema());
    return entry ? entry->info : insert(op);
  }

  // It is being undefined. Another may have its schema where this one's was.
  void forget(const c10::OperatorHandle& op) {
    std::lock_guard guard(mutex_);
    const auto [entry, slot] = find(&op.schema());
    if (!entry) return;
    entry->info.gone = true;
    entry->key = nullptr;
  }

 private:
  struct Entry {
    std::atomic<const FunctionSchema*> key;  // Null: of one that was undefined.
    OperatorInfo info;
  };

  // The entry, and where it is; or null, and where it would be.
  std::pair<Entry*, std::size_t> find(const FunctionSchema* key) {
    std::size_t slot = (reinterpret_cast<std::uintptr_t>(key) * 0x9e3779b97f4a7c15) >> 49;
    Entry* entry;
    while ((entry = slots_[slot].load(std::memory_order_acquire)) && entry->key != key) {
      slot = (slot + 1) % slots_.size();
    }
    return {entry, slot};
  }

  const OperatorInfo& insert(const c10::OperatorHandle& op) {
    std::lock_guard guard(mutex_);
    const auto [known, slot] = find(&op.schema());
    if (known) return known->info;
    TORCH_CHECK(++size_ < slots_.size() / 2, "dtr_alloc: more than ", slots_.size() / 2, " operators");
    Entry* entry = new Entry{&op.schema(), OperatorInfo(op)};
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
    : handle(op), name(c10::toString(op.operator_name())), unordered(op.schema()) {
  const FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  arguments = schema.arguments().size();
  returns = schema.returns().size();
  random = op.hasTag(at::Tag::nondeterministic_seeded) && name != kNeverDraws;
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

const OperatorInfo& operator_info(const c10::OperatorHandle& op) { return table().at(op); }

void forget_operator(const c10::OperatorHandle& op) { table().forget(op); }

bool passes_over_us(const c10::OperatorHandle& op) {
  return op.schema().name().starts_with("aten::") &&
         (is_pure_view(op.schema()) || is_metadata_change(op) || is_composite(op));
}

}  // namespace dtr
