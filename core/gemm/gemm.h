// The three GEMMs of a linear layer: description, checks, choice of kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/base/names.h"
#include "core/ops/gemm.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {

// Returns the operands. fprop: activation and weight; dgrad: gradient and weight; wgrad: gradient
// and activation.
struct OperandNames {
  TensorName a;
  TensorName b;
};
OperandNames get_operands(Gemm gemm);

struct GemmDescription {
  Gemm gemm;
  // The operands of get_operands(gemm). Plain operands are 2-D tensors. Of quantized operands,
  // fprop uses both rowwise, dgrad the gradient rowwise and the weight columnwise, wgrad both
  // columnwise.
  const Operand& a;
  const Operand& b;
  const at::Tensor& bias;    // fprop only, [out], of out_dtype; may be undefined
  at::ScalarType out_dtype;  // FP32 accumulation, one rounding to this
  const std::string& layer;  // for error messages

  // FP32, of the result's shape: the product is added to it without rounding; out_dtype then only
  // names the operands' dtype. Undefined if the product is returned.
  at::Tensor accumulate_into = {};
  // MMParams of the recipe for quantized operands.
  bool split_accumulator = true;
  // The dtype to which plain operands are rounded first (default: out_dtype), for an FP32 output of
  // a layer that computes in 16 bits.
  std::optional<at::ScalarType> operand_dtype = {};
};

struct GemmResult {
  at::Tensor output;       // fprop: [tokens, out]; dgrad: [tokens, in]; wgrad: [out, in];
                           // accumulate_into if given
  ops::GemmChoice choice;  // the kernel that ran; empty for a product of no tokens
};

// Runs the GEMM, in the same way whether features inspect the layer or not. Uses the operands'
// custom GEMM if there is one (QuantizedTensor::custom_gemm). Throws UsageError if only one operand
// is quantized, if only one has a custom GEMM, or if both are E5M2, which no hardware multiplies.
GemmResult run_gemm(const GemmDescription& description);

// Multiplies each part of a's rows with its matrix (ops::grouped_matmul), as one operation. Each
// part counts as a GEMM.
void run_grouped_gemm(const at::Tensor& a, at::TensorList b, at::TensorList bias,
                      at::IntArrayRef rows, const at::Tensor& out);

// The number of GEMMs that this process has run, by operand precision, without GEMMs of no tokens.
struct GemmCounts {
  std::uint64_t quantized = 0;
  std::uint64_t high_precision = 0;
};
TELENS_EXPORT GemmCounts gemm_counts();

}  // namespace telens
