#include "runtime/csrc/live/composites.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/max_pool1d_native.h>
#include <ATen/ops/max_pool1d_ops.h>
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "runtime/csrc/live/call.h"
#include "runtime/csrc/live/hold.h"
#include "runtime/csrc/live/in_operator.h"
#include "runtime/csrc/live/operators.h"
#include "runtime/csrc/live/session.h"

namespace dtr {
namespace {

using torch::Library;

constexpr std::string_view kNamespace = "aten::";

// What a composite kernel reads through pointers.
enum class Reads {
  kIndices,  // Integers: split points, lengths. All else goes through operators, which are recorded.
  kContent,  // Anything. Nothing is recorded: what it makes, it mostly fills through a pointer.
};

// To add an operator, add its row here. What it writes through a pointer is a row of
// kUndeclaredWrites (operators.cpp). Found by perf/survey/composites.py, which calls each composite
// operator with every argument evicted.
struct PointerReader {
  std::string_view name;  // With its overload.
  Reads reads;
};
constexpr PointerReader kPointerReaders[] = {
    {"aten::tensor_split.tensor_indices_or_sections", Reads::kIndices},
    {"aten::_pad_packed_sequence", Reads::kIndices},
    {"aten::_pack_padded_sequence_backward", Reads::kIndices},
    {"aten::ctc_loss.Tensor", Reads::kIndices},
    {"aten::lstm.data", Reads::kIndices},
    {"aten::gru.data", Reads::kIndices},
    {"aten::rnn_tanh.data", Reads::kIndices},
    {"aten::rnn_relu.data", Reads::kIndices},
    {"aten::choose_qparams_optimized", Reads::kContent},
    {"aten::fbgemm_linear_quantize_weight", Reads::kContent},
    {"aten::fbgemm_pack_quantized_matrix", Reads::kContent},
    {"aten::fbgemm_pack_quantized_matrix.KN", Reads::kContent},
    {"aten::fbgemm_linear_int8_weight", Reads::kContent},
    {"aten::fbgemm_linear_int8_weight_fp32_activation", Reads::kContent},
    {"aten::fbgemm_pack_gemm_matrix_fp16", Reads::kContent},
    {"aten::fbgemm_linear_fp16_weight", Reads::kContent},
    {"aten::fbgemm_linear_fp16_weight_fp32_activation", Reads::kContent},
    {"aten::_saturate_weight_to_fp16", Reads::kContent},
    {"aten::_sobol_engine_draw", Reads::kContent},
    {"aten::_sobol_engine_ff_", Reads::kContent},
    {"aten::_sobol_engine_initialize_state_", Reads::kContent},
    {"aten::_sobol_engine_scramble_", Reads::kContent},
    {"aten::kron.out", Reads::kContent},
    {"aten::set_.source_Tensor_storage_offset", Reads::kContent},
};

// Its kernel takes a pointer only where nothing is differentiated. It is a plain operator then, and
// recorded as one: see max_pool1d() below.
constexpr std::string_view kMaxPool1d = "aten::max_pool1d";

const PointerReader* find(const c10::OperatorHandle& op) {
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return nullptr;
  const std::string name = c10::toString(op.operator_name());
  const auto row = std::ranges::find(kPointerReaders, name, &PointerReader::name);
  return row == std::end(kPointerReaders) ? nullptr : row;
}

// The tensors among the arguments on the stack that lie at the bits of `which`.
std::vector<at::Tensor> tensors_of(const OperatorInfo& info, std::uint64_t which,
                                   const torch::jit::Stack& stack) {
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < info.arguments; ++i) {
    if (!info.is(which, i)) continue;
    const c10::IValue& argument = stack[stack.size() - info.arguments + i];
    for_each_tensor(argument, [&](c10::TensorImpl& tensor, std::uint16_t) {
      tensors.emplace_back(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(&tensor));
    });
  }
  return tensors;
}

class IndicesStay {
 public:
  IndicesStay() { ++InOperator::state.indices_stay; }
  ~IndicesStay() { --InOperator::state.indices_stay; }
  IndicesStay(const IndicesStay&) = delete;
};

void run_on_indices(Session& session, const OperatorInfo& info, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  std::vector<at::Tensor> read = tensors_of(info, info.tensors, *stack);
  std::erase_if(read, [](const at::Tensor& tensor) {
    return !c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  });
  const Session::Reading reading(session, read);
  const IndicesStay stay;  // It may convert them first, and read what that made.
  info.handle.redispatchBoxed(keys, stack);
}

void run_on_content(Session& session, const OperatorInfo& info, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  Session::Hold hold(session, reinterpret_cast<std::uintptr_t>(&info),
                     tensors_of(info, info.tensors & ~info.writes, *stack),
                     tensors_of(info, info.writes, *stack));
  info.handle.redispatchBoxed(keys, stack);
  hold.ended();
}

// Where the kernel of ours is called.
enum class At { kAutograd, kKey };

// A composite kernel takes no keys, and calls others at all keys of this thread. So from autograd's
// key the backend's entry, which is the same kernel, is the one to call.
template <Reads reads, At at>
void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const bool seen = keys.has(kKey);
  keys = at == At::kAutograd ? c10::DispatchKeySet(c10::DispatchKey::CPU)
                             : keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  Session* session = seen ? Session::active() : nullptr;
  if (!session) return op.redispatchBoxed(keys, stack);
  const OperatorInfo& info = operator_info(op);
  constexpr auto run = reads == Reads::kIndices ? &run_on_indices : &run_on_content;
  try {
    run(*session, info, keys, stack);
  } catch (const c10::OutOfMemoryError& error) {
    session->rethrow_with_advice(error);
  }
}

// Where torch's kernel would take the pointer, this one goes on to kKey, and thence to torch's.
at::Tensor max_pool1d(c10::DispatchKeySet keys, const at::Tensor& self, at::IntArrayRef kernel_size,
                      at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                      bool ceil_mode) {
  const bool differentiated =
      (self.requires_grad() && at::GradMode::is_enabled()) || self._fw_grad(/*level=*/0).defined();
  if (!keys.has(kKey) || differentiated || at::isTensorSubclassLike(self)) {
    return at::native::max_pool1d(self, kernel_size, stride, padding, dilation, ceil_mode);
  }
  return at::_ops::max_pool1d::redispatch(keys & c10::after_autograd_keyset, self, kernel_size,
                                          stride, padding, dilation, ceil_mode);
}

template <Reads reads>
void implement(std::vector<Library>& libraries, const char* name) {
  const auto at = [&](c10::DispatchKey key, torch::CppFunction kernel) {
    libraries.emplace_back(Library::IMPL, "aten", key, __FILE__, __LINE__);
    libraries.back().impl(name, std::move(kernel));
  };
  for (auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
    at(key, torch::CppFunction::makeFromBoxedFunction<&run<reads, At::kAutograd>>());
  }
  at(kKey, torch::CppFunction::makeFromBoxedFunction<&run<reads, At::kKey>>());
}

}  // namespace

bool is_composite(const c10::OperatorHandle& op) {
  return op.schema().name() != kMaxPool1d &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

bool reads_pointers(const c10::OperatorHandle& op) { return find(op) != nullptr; }

void register_pointer_readers() {
  static auto* libraries = new std::vector<Library>;  // Registrations live as long as the process.
  libraries->emplace_back(Library::IMPL, "aten", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__);
  libraries->back().impl("max_pool1d", TORCH_FN(max_pool1d));
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    const PointerReader* row = op ? find(*op) : nullptr;
    if (!row) continue;
    const std::string own = c10::toString(name).substr(kNamespace.size());
    if (row->reads == Reads::kIndices) {
      implement<Reads::kIndices>(*libraries, own.c_str());
    } else {
      implement<Reads::kContent>(*libraries, own.c_str());
    }
  }
}

}  // namespace dtr
