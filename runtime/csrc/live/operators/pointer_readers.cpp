#include "runtime/csrc/live/operators/pointer_readers.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace dtr {
namespace {

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
// recorded as one: see intercept/composites.cpp.
constexpr std::string_view kMaxPool1d = "aten::max_pool1d";

}  // namespace

const PointerReader* pointer_reader(const c10::OperatorHandle& op) {
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return nullptr;
  const std::string name = c10::toString(op.operator_name());
  const auto row = std::ranges::find(kPointerReaders, name, &PointerReader::name);
  return row == std::end(kPointerReaders) ? nullptr : row;
}

bool is_composite(const c10::OperatorHandle& op) {
  return op.schema().name() != kMaxPool1d &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

}  // namespace dtr
