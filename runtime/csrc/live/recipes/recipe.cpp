#include "runtime/csrc/live/recipes/recipe.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <vector>

#include "runtime/csrc/engine/engine.h"

namespace dtr {
namespace {

// A list of distinct small structs, each named by its index. It only grows: a program has a few
// dozen. The last hit is remembered because neighbouring operators agree. Guarded by the engine's
// lock.
template <typename T>
class Interned {
 public:
  std::uint16_t index(const T& item) {
    if (last_ < items_.size() && items_[last_] == item) return last_;
    for (last_ = 0; last_ < items_.size(); ++last_) {
      if (items_[last_] == item) return last_;
    }
    TORCH_CHECK(last_ < std::numeric_limits<std::uint16_t>::max(),
                "dtr_alloc: more than 65535 kinds of tensor or dispatch state");
    items_.push_back(item);
    return last_;
  }
  const T& operator[](std::uint16_t index) const { return items_[index]; }

 private:
  std::vector<T> items_;
  std::uint16_t last_ = 0;
};

struct TensorKind {
  c10::DispatchKeySet keys;
  caffe2::TypeMeta dtype;
  c10::Device device;
  bool operator==(const TensorKind&) const = default;
};

Interned<TensorKind>& kinds() {
  static auto* kinds = new Interned<TensorKind>;
  return *kinds;
}

Interned<CallState>& states() {
  static auto* states = new Interned<CallState>;
  return *states;
}

// Exactly the strides that sizes alone would give. is_contiguous() ignores those of dimensions of
// size one, but kernels choose a memory format by them.
bool has_canonical_strides(const c10::TensorImpl& tensor) {
  std::int64_t expected = 1;
  for (std::int64_t d = tensor.dim(); d-- > 0;) {
    if (tensor.strides()[d] != expected) return false;
    expected *= std::max<std::int64_t>(tensor.sizes()[d], 1);
  }
  return true;
}

// Whether autocast sees the operators that this one calls.
bool may_autocast(c10::DispatchKeySet excluded) {
  return !excluded.has(c10::DispatchKey::AutocastCPU) ||
         !excluded.has(c10::DispatchKey::AutocastCUDA);
}

// Which content a replay gives to a tensor: the next of the Op's uses, or none of them.
std::int32_t content_of(const OperatorInfo& info, const TensorArgument& argument,
                        std::int32_t& uses) {
  if (info.shape_only) return kShapeOnly;
  if (argument.scratch) return kScratch;
  if (argument.inlined()) return kInline;
  return uses++;
}

// What a recipe keeps of the tensor arguments of a call, and how much there is of everything.
struct TensorRecipes {
  c10::SmallVector<TensorRecipe, 16> list;
  std::size_t words = 0, written = 0;
  std::int32_t uses = 0;

  void add(const OperatorInfo& info, const TensorArgument& argument) {
    const c10::TensorImpl& tensor = *argument.tensor;
    list.push_back(
        {.use = content_of(info, argument, uses),
         .item = argument.item,
         .kind = kinds().index({tensor.key_set(), tensor.dtype(), tensor.device()}),
         .argument = argument.argument,
         .dims = static_cast<std::uint8_t>(tensor.dim()),
         .contiguous = has_canonical_strides(tensor),
         .wrapped_number = tensor.is_wrapped_number(),
         .requires_grad = tensor.requires_grad(),
         .written = argument.written,
         .remainder = static_cast<std::uint8_t>(remainder_of(pointer_of(argument.storage).get())),
         .offset = tensor.storage_offset()});
    words += TensorWords(list.back()).end;
    written += argument.written;
  }
};

// A recipe counts tensors and results in 16 bits, dimensions in 8.
constexpr std::size_t kMostTensors = 60000;
constexpr std::int64_t kMostDims = 255;

bool is_countable(const TensorArguments& arguments) {
  return arguments.size() <= kMostTensors &&
         std::all_of(arguments.begin(), arguments.end(), [](const TensorArgument& argument) {
           return argument.tensor->dim() <= kMostDims;
         });
}

// Whether the recipe keeps something among its plain arguments. Of a list of tensors it is the
// length.
bool is_plain_argument(const OperatorInfo& info, const c10::IValue* first, std::uint32_t i) {
  return info.is(info.lists, i) || !is_defined_tensor(first[i]);
}

std::size_t count_plain_arguments(const OperatorInfo& info, const c10::IValue* first) {
  std::size_t count = 0;
  for (std::uint32_t i = 0; i < info.arguments; ++i) count += is_plain_argument(info, first, i);
  return count;
}

// A list that a script of torch.jit still has a name for, and may change.
bool is_shared_list(const c10::IValue& value) { return value.isList() && value.use_count() > 1; }

void write_plain_arguments(const OperatorInfo& info, const c10::IValue* first,
                           RecipeWriter& writer) {
  for (std::uint32_t i = 0; i < info.arguments; ++i) {
    if (!is_plain_argument(info, first, i)) continue;
    if (info.is(info.lists, i) && first[i].isList()) {
      writer.plain(static_cast<std::int64_t>(first[i].toListRef().size()));
    } else {
      writer.plain(is_shared_list(first[i]) ? first[i].deepcopy() : first[i]);
    }
  }
}

// A storage of its own for content that the recipe keeps.
c10::Storage storage_of_kept(const RecipeReader::Tensor& tensor, c10::Device device) {
  void* const block = c10::alloc_cpu(tensor.recipe.remainder + kLargestInline);
  void* const content = static_cast<char*>(block) + tensor.recipe.remainder;
  std::memcpy(content, tensor.content, kLargestInline);
  return c10::Storage(c10::Storage::use_byte_size_t(), kLargestInline,
                      at::DataPtr(content, block, &c10::free_cpu, device));
}

at::Tensor tensor_over(c10::Storage storage, const RecipeReader::Tensor& tensor) {
  const TensorRecipe& recipe = tensor.recipe;
  const TensorKind& kind = kinds()[recipe.kind];
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), kind.keys, kind.dtype);
  if (recipe.contiguous) {
    impl->set_sizes_contiguous(tensor.sizes);
    impl->set_storage_offset(recipe.offset);
  } else {
    impl->set_sizes_and_strides(tensor.sizes, tensor.strides, recipe.offset);
  }
  if (recipe.wrapped_number) impl->set_wrapped_number(true);
  if (recipe.requires_grad) impl->set_requires_grad(true);
  return at::Tensor(std::move(impl));
}

// Bytes from the begin of the storage to the end of the last element that the tensor names.
Bytes reach(const RecipeReader::Tensor& tensor) {
  std::int64_t elements = tensor.recipe.offset;
  if (tensor.recipe.contiguous) {
    elements += c10::multiply_integers(tensor.sizes);
  } else {
    for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
      elements += (tensor.sizes[d] - 1) * tensor.strides[d];
    }
    ++elements;
  }
  return elements * static_cast<Bytes>(kinds()[tensor.recipe.kind].dtype.itemsize());
}

// The arguments of a replay, made one after another in the order of the schema.
class ReplayArguments {
 public:
  // Of `storages`, those from `scratch` on are for tensors that may have any memory.
  ReplayArguments(const OperatorInfo& info, RecipeReader reader, const RandomState* random,
                  c10::ArrayRef<c10::Storage> storages, std::size_t scratch)
      : info_(info), reader_(reader), random_(random), storages_(storages), scratch_(scratch) {}

  c10::IValue next(Replay& replay) {
    const std::uint32_t i = argument_++;
    if (info_.is(info_.lists, i) && reader_.peek_plain().isInt()) return list(i, replay);
    if (tensor_is_of(i)) return tensor(replay);
    const c10::IValue& plain = reader_.plain();
    const bool draws = random_ && static_cast<std::int32_t>(i) == info_.generator;
    return draws ? c10::IValue(random_->generator()) : plain;
  }

 private:
  bool tensor_is_of(std::uint32_t argument) const {
    return reader_.has_tensor() && reader_.peek_tensor().argument == argument;
  }

  c10::Storage storage_of(const RecipeReader::Tensor& tensor) {
    const auto device = [&] { return kinds()[tensor.recipe.kind].device; };
    switch (tensor.recipe.use) {
      case kScratch:
        return storages_[scratch_++];
      case kShapeOnly:
        return c10::Storage(c10::Storage::use_byte_size_t(), 0, at::DataPtr(nullptr, device()));
      case kInline:
        return storage_of_kept(tensor, device());
      default:
        return storages_[tensor.recipe.use];
    }
  }

  at::Tensor tensor(Replay& replay) {
    const RecipeReader::Tensor read = reader_.tensor();
    at::Tensor made = tensor_over(storage_of(read), read);
    if (read.recipe.written) replay.written.push_back(made);
    return made;
  }

  c10::IValue list(std::uint32_t argument, Replay& replay) {
    const std::int64_t length = reader_.plain().toInt();
    c10::List<std::optional<at::Tensor>> optional;
    c10::List<at::Tensor> tensors;
    const bool may_lack = info_.is(info_.optional_lists, argument);
    for (std::int64_t item = 0; item < length; ++item) {
      std::optional<at::Tensor> present;
      if (tensor_is_of(argument) && reader_.peek_tensor().item == item) present = tensor(replay);
      if (may_lack) {
        optional.push_back(std::move(present));
      } else {
        tensors.push_back(present.value_or(at::Tensor()));
      }
    }
    return may_lack ? c10::IValue(std::move(optional)) : c10::IValue(std::move(tensors));
  }

  const OperatorInfo& info_;
  RecipeReader reader_;
  const RandomState* const random_;
  const c10::ArrayRef<c10::Storage> storages_;
  std::size_t scratch_;
  std::uint32_t argument_ = 0;
};

}  // namespace

std::shared_ptr<const RandomState> Recipe::snapshot(const OperatorInfo& info,
                                                    const torch::jit::Stack& stack,
                                                    const SessionDevice& device) {
  if (!info.random) return {};
  const c10::IValue* first = stack.data() + stack.size() - info.arguments;
  const bool given = info.generator >= 0 && first[info.generator].isGenerator();
  at::Generator generator =
      given ? first[info.generator].toGenerator() : device.generator(device.device);
  std::lock_guard guard(generator.mutex());
  return std::make_shared<const RandomState>(generator);
}

Op* Recipe::record(Engine& engine, const OperatorInfo& info, c10::DispatchKeySet keys,
                   const torch::jit::Stack& stack, const TensorArguments& arguments,
                   std::shared_ptr<const RandomState> random, Switches::Number switches) {
  if (!is_countable(arguments)) return nullptr;
  TensorRecipes tensors;
  for (const TensorArgument& argument : arguments) tensors.add(info, argument);
  if (info.returns + tensors.written > kMostTensors) return nullptr;
  const c10::IValue* first = stack.data() + stack.size() - info.arguments;
  const std::size_t plain = count_plain_arguments(info, first);
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  const std::uint16_t state = states().index(
      {keys, local.included_, local.excluded_, c10::GradMode::is_enabled(),
       info.others || may_autocast(local.excluded_) ? autocast_types_now() : AutocastTypes(),
       switches, ThreadSwitches::now()});

  Op* op =
      engine.begin(tensors.uses, info.returns + tensors.written,
                   sizeof(Recipe) + RecipeParts::bytes(arguments.size(), plain, tensors.words));
  op->together = info.listed;
  Recipe& recipe =
      *new (op->payload()) Recipe(info, std::move(random), state, arguments.size(), plain);
  RecipeWriter writer(recipe.parts());
  write_plain_arguments(info, first, writer);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    writer.tensor(tensors.list[i], *arguments[i].tensor, *arguments[i].storage);
  }
  return op;
}

void Recipe::has_run() {
  const std::int32_t threads = ThreadSwitches::threads_now();
  if (states()[state_].thread.threads == threads) return;
  CallState seen = states()[state_];
  seen.thread.threads = threads;
  state_ = states().index(seen);
}

void Recipe::destroy() {
  std::destroy_n(parts().plain, plain_);
  this->~Recipe();
}

bool Recipe::writes(std::uint32_t use) const {
  for (const TensorRecipe& tensor : tensors()) {
    if (tensor.use == static_cast<std::int32_t>(use)) return tensor.written;
  }
  return false;
}

c10::SmallVector<Bytes, 2> Recipe::scratch() const {
  c10::SmallVector<Bytes, 2> sizes;
  if (!info_->statistics) return sizes;
  for (RecipeReader reader = this->reader(); reader.has_tensor();) {
    const RecipeReader::Tensor tensor = reader.tensor();
    if (tensor.recipe.use == kScratch) sizes.push_back(reach(tensor));
  }
  return sizes;
}

Replay Recipe::prepare(c10::ArrayRef<c10::Storage> storages, std::size_t uses,
                       const SessionDevice& device) const {
  TORCH_CHECK(!info_->gone, info_->name,
              " was undefined since it made this tensor, which would have to be computed again: "
              "define an operator once, or dtr_alloc.pin(tensor) before its definition goes");
  Replay replay{.info = info_,
                .state = states()[state_],
                .stack = {},
                .written = {},
                .default_generator = {},
                .recorded_state = {}};
  ReplayArguments arguments(*info_, reader(), random_.get(), storages, uses);
  replay.stack.reserve(info_->arguments);
  for (std::uint32_t i = 0; i < info_->arguments; ++i) {
    replay.stack.push_back(arguments.next(replay));
  }
  if (random_ && info_->generator < 0) {
    replay.recorded_state = *random_;
    replay.default_generator = device.generator(device.device);
  }
  return replay;
}

}  // namespace dtr
