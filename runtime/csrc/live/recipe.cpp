#include "runtime/csrc/live/recipe.h"

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

struct Context {
  c10::DispatchKeySet keys, included, excluded;
  bool grad_mode;
  bool operator==(const Context&) const = default;
};

Interned<TensorKind>& kinds() {
  static auto* kinds = new Interned<TensorKind>;
  return *kinds;
}

Interned<Context>& contexts() {
  static auto* contexts = new Interned<Context>;
  return *contexts;
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

// What a replay must not enter: it runs below autograd, and is not recorded itself.
const c10::DispatchKeySet kAbove = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                   c10::DispatchKeySet(kKey) |
                                   c10::DispatchKeySet(c10::DispatchKey::Python) |
                                   c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot);

}  // namespace

std::unique_ptr<RandomState> Recipe::snapshot(const OperatorInfo& info,
                                              const torch::jit::Stack& stack,
                                              const SessionDevice& device) {
  if (!info.random) return {};
  const c10::IValue* first = stack.data() + stack.size() - info.arguments;
  bool given = info.generator >= 0 && first[info.generator].isGenerator();
  at::Generator generator =
      given ? first[info.generator].toGenerator() : device.generator(device.device);
  std::lock_guard<std::mutex> guard(generator.mutex());
  return std::make_unique<RandomState>(generator);
}

Op* Recipe::record(const OperatorInfo& info, c10::DispatchKeySet keys,
                   const torch::jit::Stack& stack, const TensorArguments& arguments,
                   std::unique_ptr<RandomState> random) {
  static_assert(sizeof(TensorRecipe) == 24 && sizeof(c10::IValue) == 16);
  std::size_t words = 0, uses = 0, written = 0;
  for (const TensorArgument& argument : arguments) {
    const c10::TensorImpl& tensor = *argument.tensor;
    if (tensor.dim() > 255) return nullptr;
    words += tensor.dim() * (has_canonical_strides(tensor) ? 1 : 2);
    if (!info.shape_only && argument.inlined()) {
      words += kLargestInline / sizeof(std::int64_t);
    } else if (!argument.scratch) {
      ++uses;
    }
    written += argument.written;
  }
  const c10::IValue* first = stack.data() + stack.size() - info.arguments;
  std::size_t plain = 0;
  for (std::uint32_t i = 0; i < info.arguments; ++i) {
    plain += info.is(info.lists, i) || !is_defined_tensor(first[i]);
  }
  if (arguments.size() > 60000 || info.returns + written > 60000) return nullptr;

  Op* op = Engine::begin(info.shape_only ? 0 : uses, info.returns + written,
                         sizeof(Recipe) + arguments.size() * sizeof(TensorRecipe) +
                             plain * sizeof(c10::IValue) + words * sizeof(std::int64_t));
  Recipe& recipe = *new (op->payload()) Recipe;
  recipe.info_ = &info;
  recipe.tensors_ = arguments.size();
  recipe.plain_ = plain;
  c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  recipe.context_ = contexts().index(
      Context{keys, local.included_, local.excluded_, c10::GradMode::is_enabled()});

  c10::IValue* copy = recipe.plain();
  for (std::uint32_t i = 0; i < info.arguments; ++i) {
    if (info.is(info.lists, i) && first[i].isList()) {
      new (copy++) c10::IValue(static_cast<std::int64_t>(first[i].toListRef().size()));
    } else if (info.is(info.lists, i) || !is_defined_tensor(first[i])) {
      new (copy++) c10::IValue(first[i]);
    }
  }
  TensorRecipe* slot = const_cast<TensorRecipe*>(recipe.tensors().data());
  std::int64_t* numbers = recipe.geometry();
  std::int32_t use = 0;
  for (const TensorArgument& argument : arguments) {
    const c10::TensorImpl& tensor = *argument.tensor;
    bool contiguous = has_canonical_strides(tensor);
    bool inlined = !info.shape_only && argument.inlined();
    new (slot++)
        TensorRecipe{.use = info.shape_only    ? kShapeOnly
                            : argument.scratch ? kScratch
                            : inlined          ? kInline
                                               : use++,
                     .item = argument.item,
                     .kind = kinds().index({tensor.key_set(), tensor.dtype(), tensor.device()}),
                     .argument = argument.argument,
                     .dims = static_cast<std::uint8_t>(tensor.dim()),
                     .contiguous = contiguous,
                     .wrapped_number = tensor.is_wrapped_number(),
                     .requires_grad = tensor.requires_grad(),
                     .written = argument.written,
                     .offset = tensor.storage_offset()};
    for (std::int64_t size : tensor.sizes()) *numbers++ = size;
    if (!contiguous) {
      for (std::int64_t stride : tensor.strides()) *numbers++ = stride;
    }
    if (inlined) {
      std::memcpy(numbers, argument.storage->_mutable_data_ptr_no_checks().get(),
                  argument.storage->nbytes());
      numbers += kLargestInline / sizeof(std::int64_t);
    }
  }
  recipe.random_ = std::move(random);
  return op;
}

void Recipe::destroy() {
  for (std::uint16_t i = 0; i < plain_; ++i) plain()[i].~IValue();
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
  const std::int64_t* numbers = geometry();
  for (const TensorRecipe& recipe : tensors()) {
    std::int64_t elements = recipe.offset;
    if (recipe.contiguous) {
      elements += c10::multiply_integers(numbers, numbers + recipe.dims);
    } else {
      for (std::uint8_t d = 0; d < recipe.dims; ++d) {
        elements += (numbers[d] - 1) * numbers[recipe.dims + d];
      }
      ++elements;
    }
    numbers += recipe.contiguous ? recipe.dims : 2 * recipe.dims;
    if (recipe.use == kInline) numbers += kLargestInline / sizeof(std::int64_t);
    if (recipe.use != kScratch) continue;
    sizes.push_back(elements * static_cast<Bytes>(kinds()[recipe.kind].dtype.itemsize()));
  }
  return sizes;
}

Replay Recipe::prepare(c10::ArrayRef<c10::Storage> storages, const SessionDevice& device) const {
  const Context& context = contexts()[context_];
  Replay replay{.info = info_,
                .stack = {},
                .written = {},
                .keys = context.keys,
                .included = context.included,
                .excluded = context.excluded | kAbove,
                .grad_mode = context.grad_mode,
                .default_generator = {},
                .recorded_state = {}};
  c10::SmallVector<at::Tensor, 8> tensors;
  const std::int64_t* numbers = geometry();
  std::size_t scratch = storages.size() - this->scratch().size();
  for (const TensorRecipe& recipe : this->tensors()) {
    const TensorKind& kind = kinds()[recipe.kind];
    c10::IntArrayRef sizes(numbers, recipe.dims);
    numbers += recipe.dims;
    c10::IntArrayRef strides(numbers, recipe.contiguous ? 0 : recipe.dims);
    numbers += strides.size();
    c10::Storage storage;
    if (recipe.use >= 0) {
      storage = storages[recipe.use];
    } else if (recipe.use == kScratch) {
      storage = storages[scratch++];
    } else if (recipe.use == kShapeOnly) {
      storage = c10::Storage(c10::Storage::use_byte_size_t(), 0, at::DataPtr(nullptr, kind.device));
    } else {
      // Kernels expect every tensor to be aligned as an allocator would.
      void* content = c10::alloc_cpu(kLargestInline);
      std::memcpy(content, numbers, kLargestInline);
      storage = c10::Storage(c10::Storage::use_byte_size_t(), kLargestInline,
                             at::DataPtr(content, content, &c10::free_cpu, kind.device));
      numbers += kLargestInline / sizeof(std::int64_t);
    }
    auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), kind.keys, kind.dtype);
    if (recipe.contiguous) {
      impl->set_sizes_contiguous(sizes);
      impl->set_storage_offset(recipe.offset);
    } else {
      impl->set_sizes_and_strides(sizes, strides, recipe.offset);
    }
    if (recipe.wrapped_number) impl->set_wrapped_number(true);
    if (recipe.requires_grad) impl->set_requires_grad(true);
    tensors.emplace_back(std::move(impl));
    if (recipe.written) replay.written.push_back(tensors.back());
  }
  std::size_t next_tensor = 0, next_plain = 0;
  const auto at_argument = [&](std::uint32_t i) {
    return next_tensor < tensors.size() && this->tensors()[next_tensor].argument == i;
  };
  for (std::uint32_t i = 0; i < info_->arguments; ++i) {
    if (info_->is(info_->lists, i) && plain()[next_plain].isInt()) {
      std::int64_t length = plain()[next_plain++].toInt();
      c10::List<std::optional<at::Tensor>> optional;
      c10::List<at::Tensor> list;
      for (std::int64_t item = 0; item < length; ++item) {
        bool present = at_argument(i) && this->tensors()[next_tensor].item == item;
        std::optional<at::Tensor> tensor;
        if (present) tensor = tensors[next_tensor++];
        if (info_->is(info_->optional_lists, i)) {
          optional.push_back(tensor);
        } else {
          list.push_back(tensor.value_or(at::Tensor()));
        }
      }
      if (info_->is(info_->optional_lists, i)) {
        replay.stack.emplace_back(std::move(optional));
      } else {
        replay.stack.emplace_back(std::move(list));
      }
    } else if (at_argument(i)) {
      replay.stack.emplace_back(tensors[next_tensor++]);
    } else if (random_ && static_cast<std::int32_t>(i) == info_->generator) {
      replay.stack.emplace_back(random_->generator());
      ++next_plain;
    } else {
      replay.stack.emplace_back(plain()[next_plain++]);
    }
  }
  if (random_ && info_->generator < 0) {
    replay.recorded_state = *random_;
    replay.default_generator = device.generator(device.device);
  }
  return replay;
}

void Replay::run() {
  c10::impl::ForceDispatchKeyGuard dispatch(included, excluded);
  c10::AutoGradMode grad(grad_mode);
  DrawingFrom state(default_generator, recorded_state ? &*recorded_state : nullptr);
  info->handle.redispatchBoxed(keys, &stack);
}

}  // namespace dtr
