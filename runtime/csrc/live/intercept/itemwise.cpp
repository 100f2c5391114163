// An optimizer that takes all parameters in one operator (`_foreach_add_`, `_fused_adamw_`) needs
// all gradients and all of its state at once, which a budget with swap need not hold. But such an
// operator does the same to one parameter after the other. Where its arguments would fill much of
// the budget it is called once for each: the same kernels on the same tensors, to the same bits.

#include <ATen/core/List.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/csrc/live/intercept/interception.h"

namespace dtr {
namespace {

// The argument for one item: of a list that item; another as it is, and a list of nothing, too.
c10::IValue one_of(const c10::IValue& argument, std::size_t item) {
  if (!argument.isList()) return argument;
  const c10::List<c10::IValue> list = argument.toList();
  if (list.empty()) return argument;
  c10::List<c10::IValue> one(list.elementType());
  one.push_back(list.get(item));
  return one;
}

// Whether all lists have so many items: others are an error, or mean something else.
bool have_all(const c10::ArrayRef<c10::IValue> arguments, std::size_t items) {
  return std::ranges::all_of(arguments, [&](const c10::IValue& argument) {
    const std::size_t size = argument.isList() ? argument.toListRef().size() : 0;
    return size == 0 || size == items;
  });
}

// Whether a device's kernel takes each item as it takes all of them. Torch has a fast kernel and a
// slow one, whose last bits may differ, and one item that the fast one cannot take decides for all.
// It takes dense items of one type and, from list to list, of one layout.
bool have_one_way(const OperatorInfo& info, const c10::ArrayRef<c10::IValue> arguments) {
  const bool fused = info.name.find("_fused_") != std::string::npos;
  c10::ArrayRef<c10::IValue> first;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensorList()) continue;
    const auto items = argument.toListRef();
    if (first.empty()) first = items;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const at::Tensor &one = items[i].toTensor(), &like = first[i].toTensor();
      const at::Tensor& of_all = first[0].toTensor();
      if (fused && one.numel() == 1 && like.numel() > 1) continue;  // The number of its step.
      const bool same = one.scalar_type() == of_all.scalar_type() &&
                        one.device() == of_all.device() && one.layout() == c10::kStrided &&
                        one.sizes() == like.sizes() && one.strides() == like.strides();
      if (!same || !one.is_non_overlapping_and_dense()) return false;
    }
  }
  return true;
}

Bytes sum_of_bytes(const c10::ArrayRef<c10::IValue> arguments) {
  Bytes sum = 0;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const c10::TensorImpl& tensor, std::uint16_t) {
      if (tensor.has_storage()) sum += bytes_of(storage_of(tensor));
    });
  }
  return sum;
}

}  // namespace

bool Interception::execute_itemwise(const OperatorInfo& info, c10::DispatchKeySet keys,
                                    torch::jit::Stack* stack) {
  constexpr int kShare = 8;  // Of the budget: less than that may well be read at once.
  if (!session_.swap().is_there() || !info.itemwise) return false;
  const std::vector<c10::IValue> arguments(stack->end() - info.arguments, stack->end());
  const std::size_t items = arguments[0].toListRef().size();
  if (items < 2 || !have_all(arguments, items)) return false;
  const at::Tensor& first = arguments[0].toListRef()[0].toTensor();
  if (!session_.device().holds(*first.unsafeGetTensorImpl())) return false;
  if (session_.device().work && !have_one_way(info, arguments)) return false;
  if (sum_of_bytes(arguments) <= session_.memory().budget() / kShare) return false;
  c10::List<at::Tensor> made;
  for (std::size_t item = 0; item < items; ++item) {
    torch::jit::Stack one;
    for (const c10::IValue& argument : arguments) one.push_back(one_of(argument, item));
    execute(info, keys, &one);
    if (info.returns > 0) made.push_back(one.back().toTensorVector()[0]);
  }
  torch::jit::drop(*stack, info.arguments);
  if (info.returns > 0) stack->push_back(std::move(made));
  return true;
}

}  // namespace dtr
