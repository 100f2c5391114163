#include "runtime/csrc/live/operators/unordered.h"

#include <ATen/Parallel.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace dtr {
namespace {

using Order = Unordered::Order;

// One row each. Names are without "aten::", the overload and the last "_" of a write in place.
struct UnorderedOperator {
  std::string_view name;
  bool on_host;
  Order on_device;
  bool has_variant;
};

constexpr UnorderedOperator kUnorderedOperators[] = {
    {"index_put", true, Order::kPlacesOrRepeats, true},
    {"_index_put_impl", true, Order::kPlacesOrRepeats, true},
    {"_unsafe_index_put", true, Order::kPlacesOrRepeats, true},
    {"_unsafe_masked_index_put_accumulate", true, Order::kRepeats, true},
    {"put", true, Order::kPlaces, false},
    {"max_unpool2d", true, Order::kPlaces, false},
    {"max_unpool3d", true, Order::kPlaces, false},
    {"cumsum", false, Order::kSums, true},
    {"cumprod", false, Order::kSums, false},
    {"_logcumsumexp", false, Order::kSums, false},
    {"logcumsumexp", false, Order::kSums, false},
    {"scatter_add", false, Order::kSums, true},
    {"index_add", false, Order::kSums, true},
    {"scatter", false, Order::kPlaces, true},  // Of a tensor `src`, see below.
    {"index_copy", false, Order::kPlaces, true},
    {"embedding_dense_backward", false, Order::kSums, true},
    {"max_pool3d_with_indices_backward", false, Order::kSums, true},
    {"replication_pad1d_backward", false, Order::kSums, true},
    {"replication_pad2d_backward", false, Order::kSums, true},
    {"replication_pad3d_backward", false, Order::kSums, true},
    {"_flash_attention_backward", false, Order::kSums, false},
    {"_scaled_dot_product_flash_attention_backward", false, Order::kSums, false},
    {"_efficient_attention_backward", false, Order::kSums, false},
    {"_scaled_dot_product_efficient_attention_backward", false, Order::kSums, false},
    {"_scaled_dot_product_cudnn_attention_backward", false, Order::kSums, false},
    {"scatter_reduce", false, Order::kSums, false},
    {"index_reduce", false, Order::kSums, false},
    {"histc", false, Order::kSums, false},
    {"bincount", false, Order::kSums, false},
    {"median", false, Order::kPlaces, false},  // Of results with indices, see below.
    {"nanmedian", false, Order::kPlaces, false},
    {"kthvalue", false, Order::kPlaces, false},
    {"nll_loss2d_forward", false, Order::kSums, false},
    {"avg_pool3d_backward", false, Order::kSums, false},
    {"_adaptive_avg_pool2d_backward", false, Order::kSums, false},
    {"_adaptive_avg_pool3d_backward", false, Order::kSums, false},
    {"adaptive_max_pool2d_backward", false, Order::kSums, false},
    {"fractional_max_pool2d_backward", false, Order::kSums, false},
    {"fractional_max_pool3d_backward", false, Order::kSums, false},
    {"upsample_linear1d_backward", false, Order::kSums, false},
    {"upsample_bilinear2d_backward", false, Order::kSums, false},
    {"upsample_bicubic2d_backward", false, Order::kSums, false},
    {"upsample_trilinear3d_backward", false, Order::kSums, false},
    {"reflection_pad1d_backward", false, Order::kSums, false},
    {"reflection_pad2d_backward", false, Order::kSums, false},
    {"reflection_pad3d_backward", false, Order::kSums, false},
    {"_ctc_loss_backward", false, Order::kSums, false},
    {"_embedding_bag_dense_backward", false, Order::kSums, false},
    {"grid_sampler_2d_backward", false, Order::kSums, false},
    {"grid_sampler_3d_backward", false, Order::kSums, false},
};

bool is_real(const c10::IValue& argument) {
  if (!argument.isTensor()) return false;
  const at::Tensor& tensor = argument.toTensor();
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}

}  // namespace

Unordered::Unordered(const c10::FunctionSchema& schema) {
  std::string_view name = schema.name();
  if (!name.starts_with("aten::")) return;
  name.remove_prefix(std::string_view("aten::").size());
  if (name.ends_with('_')) name.remove_suffix(1);
  const auto* row = std::ranges::find(kUnorderedOperators, name, &UnorderedOperator::name);
  if (row == std::end(kUnorderedOperators)) return;
  if (name == "scatter" && !schema.argumentIndexWithName("src")) return;
  if (name.ends_with("median") && schema.returns().size() == 1) return;
  on_host_ = row->on_host;
  on_device_ = row->on_device;
  has_variant_ = row->has_variant && !schema.argumentIndexWithName("reduce");
  casts_ = schema.argumentIndexWithName("dtype").value_or(-1);
  accumulates_ = schema.argumentIndexWithName("accumulate").value_or(-1);
}

bool Unordered::differs(c10::ArrayRef<c10::IValue> arguments, bool on_device,
                        DeterministicMode mode) const {
  if (mode.on && (has_variant_ || !mode.warns)) return false;
  const auto accumulates = [&] { return accumulates_ < 0 || arguments[accumulates_].toBool(); };
  if (!on_device) return on_host_ && accumulates() && at::get_num_threads() > 1;
  if (on_device_ == Order::kPlacesOrRepeats) return !accumulates();
  if (on_device_ == Order::kRepeats) return false;
  const bool casts = casts_ >= 0 && !arguments[casts_].isNone();
  return on_device_ == Order::kPlaces || casts || std::ranges::any_of(arguments, is_real);
}

}  // namespace dtr
