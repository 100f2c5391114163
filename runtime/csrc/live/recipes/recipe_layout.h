// Defines where the parts of a recipe lie in its one block of memory. RecipeWriter and RecipeReader
// find them by the same functions, so the two cannot disagree.
//
//   Recipe | TensorRecipe per tensor | IValue per plain argument | words, 64 bits each
//
// The words of a tensor are its sizes, then its strides (if the sizes do not imply them), then its
// content (if the recipe keeps it). Every size is a multiple of eight bytes: nothing is padded.

#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "runtime/csrc/engine/rules.h"

namespace dtr {

struct TensorRecipe {
  std::int32_t use;  // Index of its Use in the Op, or one of the constants below.
  std::uint16_t item;
  std::uint16_t kind;  // Index of its key set, dtype and device.
  std::uint8_t argument;
  std::uint8_t dims;
  bool contiguous : 1, wrapped_number : 1, requires_grad : 1, written : 1;
  std::uint8_t remainder;  // For kInline: remainder_of() the original's address (device.h).
  std::int64_t offset;
};
constexpr std::int32_t kShapeOnly = -1;  // The operator reads only the tensor's shape.
constexpr std::int32_t kInline = -2;     // The recipe keeps the tensor's content.
constexpr std::int32_t kScratch = -3;    // Any memory will do: no result depends on the content.

static_assert(sizeof(TensorRecipe) == 24 && sizeof(c10::IValue) == 16);

// The layout of a tensor's words: the indices where sizes, strides and content begin, and the end.
struct TensorWords {
  explicit TensorWords(const TensorRecipe& tensor)
      : strides(tensor.dims),
        content(strides + (tensor.contiguous ? 0 : tensor.dims)),
        end(content + (tensor.use == kInline ? kLargestInline / sizeof(std::int64_t) : 0)) {}

  std::size_t sizes = 0, strides, content, end;
};

// Points to the start of each part of a recipe. `begin`: the address after the Recipe object.
struct RecipeParts {
  RecipeParts(void* begin, std::size_t tensor_count, std::size_t plain_count)
      : tensor(static_cast<TensorRecipe*>(begin)),
        plain(reinterpret_cast<c10::IValue*>(tensor + tensor_count)),
        words(reinterpret_cast<std::int64_t*>(plain + plain_count)) {}
  static std::size_t bytes(std::size_t tensor_count, std::size_t plain_count,
                           std::size_t word_count) {
    return tensor_count * sizeof(TensorRecipe) + plain_count * sizeof(c10::IValue) +
           word_count * sizeof(std::int64_t);
  }

  TensorRecipe* tensor;
  c10::IValue* plain;
  std::int64_t* words;
};

class RecipeWriter {
 public:
  explicit RecipeWriter(const RecipeParts& parts) : at_(parts) {}

  void plain(c10::IValue value) { new (at_.plain++) c10::IValue(std::move(value)); }
  void tensor(const TensorRecipe& recipe, const c10::TensorImpl& tensor,
              c10::StorageImpl& storage) {
    const TensorWords words(recipe);
    new (at_.tensor++) TensorRecipe(recipe);
    std::copy_n(tensor.sizes().data(), recipe.dims, at_.words + words.sizes);
    if (!recipe.contiguous) {
      std::copy_n(tensor.strides().data(), recipe.dims, at_.words + words.strides);
    }
    if (recipe.use == kInline) {
      std::memcpy(at_.words + words.content, storage._mutable_data_ptr_no_checks().get(),
                  storage.nbytes());
    }
    at_.words += words.end;
  }

 private:
  RecipeParts at_;
};

class RecipeReader {
 public:
  struct Tensor {
    const TensorRecipe& recipe;
    c10::IntArrayRef sizes;
    c10::IntArrayRef strides;  // Empty if the sizes imply them.
    const void* content;       // kLargestInline bytes, if the recipe keeps the content.
  };

  RecipeReader(const RecipeParts& parts, std::size_t tensor_count)
      : at_(parts), end_(parts.tensor + tensor_count) {}

  bool has_tensor() const { return at_.tensor != end_; }
  const TensorRecipe& peek_tensor() const { return *at_.tensor; }
  const c10::IValue& peek_plain() const { return *at_.plain; }

  const c10::IValue& plain() { return *at_.plain++; }
  Tensor tensor() {
    const TensorRecipe& recipe = *at_.tensor++;
    const TensorWords words(recipe);
    const std::int64_t* first = at_.words;
    at_.words += words.end;
    return {recipe,
            {first + words.sizes, words.strides - words.sizes},
            {first + words.strides, words.content - words.strides},
            first + words.content};
  }

 private:
  RecipeParts at_;
  const TensorRecipe* end_;
};

}  // namespace dtr
