// The three matrix products of a linear layer: one description, its checks, its choice of kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/base/names.h"
#include "core/ops/gemm_choice.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {

// fprop: activation and weight; dgrad: gradient and weight; wgrad: gradient and activation.
struct OperandNames {
  TensorName a;
  TensorName b;
};
OperandNames get_operands(Gemm gemm);

struct GemmDescription {
  Gemm gemm;
  // The get_operands(gemm).
  // Plain operands are the tensors themselves, 2-D; of quantized ones fprop takes both rowwise,
  // dgrad the gradient rowwise and the weight columnwise, wgrad both columnwise.
  const Operand& a;
  const Operand& b;
  const at::Tensor& bias;    // fprop only, [out], of out_dtype; may be undefined
  at::ScalarType out_dtype;  // FP32 accumulation, one rounding to this
  const std::string& layer;  // for error messages

  // FP32, of the result's shape: the product is accumulated into it unrounded; out_dtype then only
  // names the operands' dtype. Undefined: the product is the result.
  at::Tensor accumulate_into = {};
  // For quantized operands: MMParams of their recipe for this GEMM.
  bool split_accumulator = true;
  // The dtype to which plain operands are rounded first; default: out_dtype. For an FP32 output of
  // a layer that computes in 16 bits.
  std::optional<at::ScalarType> operand_dtype = {};
};

struct GemmResult {
  at::Tensor output;       // fprop: [tokens, out]; dgrad: [tokens, in]; wgrad: [out, in];
                           // accumulate_into where that is given
  ops::GemmChoice choice;  // the kernel that ran; empty for a product of no tokens
};

// The call is the same whether the layer is watched or not. Quantized operands whose quantizers
// bring a product of their own (QuantizedTensor::own_gemm) get that. Throws UsageError if one
// operand is quantized and the other is not, if one brings a product and the other does not, or if
// both are E5M2 (no hardware multiplies those).
GemmResult run_gemm(const GemmDescription& description);

// A product of plain operands for each part of a's rows (ops::grouped_matmul), as one operation.
// Each is counted as a GEMM.
void run_grouped_gemm(const at::Tensor& a, at::TensorList b, at::TensorList bias,
                      at::IntArrayRef rows, const at::Tensor& out);

// How many GEMMs this process has run, by precision of their operands. Products of no tokens are
// none.
struct GemmCounts {
  std::uint64_t quantized = 0;
  std::uint64_t high_precision = 0;
};
TELENS_EXPORT GemmCounts gemm_counts();

}  // namespace telens
