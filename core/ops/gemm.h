// Matrix product of quantized operands: the operators `telens::gemm` and `telens::gemm_accumulate`,
// the kernel that they ran with, and their schema and checks for every backend.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/format_id.h"
#include "core/formats/scheme.h"
#include "core/ops/tensor_utils.h"

namespace telens::ops {

// One operand: codes [rows, K] (any strides; packed FP4: [rows, K / 2], K even) and scales in the
// layout of its scheme.
struct GemmOperand {
  const at::Tensor& codes;
  const at::Tensor& scale_inv;
  // Packed FP4: FP32 [1] or, with one for each row of the codes, [rows]. Undefined for other
  // formats.
  const at::Tensor& tensor_scale;
  FormatId format;
  ScalingMode mode;
  // For 128-blocks: all scales are known to be powers of two from 2^-127 to 2^127, without a query
  // to the device. The GEMM may then run as a different product of the same value (of 32-blocks on
  // Blackwell). If the promise is broken, that product gives NaN for the blocks with such scales,
  // never a wrong number.
  bool power_of_2_scales = false;
};

// Returns true if a GEMM accepts operands of these modes: the same mode, or 1x128 blocks with
// 128x128 blocks in either order. Two operands with 128x128 blocks are excluded, because hardware
// does not multiply them.
bool can_multiply(ScalingMode a, ScalingMode b);

// Computes out[M, N] = a[M, K] x b[N, K]^T + bias[N] from the operands' values: exact products,
// accumulated in FP32, rounded once to out_dtype (BF16, FP16 or FP32). Scales that are not powers
// of two are applied to the FP32 sums: scales of a tensor or of its rows to the whole sum, scales
// of blocks to the sum over a block of K. A device may multiply the scales of two blocks first and
// treat a product below 2^-126, FP32's smallest normal number, as zero. bias has out_dtype or is
// undefined; the value that is added is bias_of_16_bits(bias). M, N, K may be zero. Throws
// ShapeError if the shapes do not match, UsageError if the modes do not match.
//
// split_accumulator = false lets a device accumulate in fewer bits if that is faster (Hopper's FP8
// products with one scale per tensor); the CPU always accumulates in FP32.
at::Tensor gemm(const GemmOperand& a, const GemmOperand& b, const at::Tensor& bias,
                at::ScalarType out_dtype, bool split_accumulator = true);

// Computes out[M, N] += a[M, K] x b[N, K]^T: the same product, not rounded before it is added. out
// is FP32.
void gemm_accumulate(const GemmOperand& a, const GemmOperand& b, const at::Tensor& out,
                     bool split_accumulator = true);

// Returns the bias as a quantized GEMM adds it on every device: FP32 is rounded to BF16, because
// FP8 products of GPUs accept 16-bit biases; other dtypes are unchanged. Undefined if bias is.
at::Tensor bias_of_16_bits(const at::Tensor& bias);

// Products of packed FP4 with one scale per row of an operand: multiplies the operands as if those
// scales were 1, on any device, then multiplies the FP32 sums by the scales.
class GemmByRows {
 public:
  GemmByRows(const GemmOperand& a, const GemmOperand& b);

  // The operands with scales of 1. They refer to this object and to the given operands.
  GemmOperand a() const { return with_ones(a_); }
  GemmOperand b() const { return with_ones(b_); }

  // Converts FP32 sums [M, N] of a() and b() to the sums of the operands. Scales are multiplied in
  // FP64, in which their product is exact and in range; the scaled sum is rounded to FP32.
  at::Tensor scaled(at::Tensor sums) const;

 private:
  GemmOperand with_ones(const GemmOperand& operand) const;

  const GemmOperand& a_;
  const GemmOperand& b_;
  at::Tensor one_;
};

// The kernel that a GEMM ran with, and the reason. Kernels report it separately from the result:
// the operator's schema is the same on every device, and only a kernel knows its criteria (the
// processor, the shape, the scales). Callers of run_gemm receive it in GemmResult
// (core/gemm/gemm.h). Both strings are literals.
struct GemmChoice {
  std::string_view kernel;  // such as "BF16 product of decoded operands"
  std::string_view reason;  // why it is not the fastest one; "" if it is
};

// For kernels: reports the choice for the GEMM that this thread runs.
void report_gemm_choice(GemmChoice choice);
// For core/gemm and tests of the operators: returns the newest choice reported on this thread.
GemmChoice newest_gemm_choice();

// The operator `telens::gemm_algorithms`: returns the algorithm that the GEMM library of x's device
// chose for every description of a product since the process began, one line each, sorted. A
// product with a known description does not query the library for an algorithm and adds no line.
// Empty on devices whose products do not keep algorithms.
std::vector<std::string> gemm_algorithms(const at::Tensor& x);

// For backends of telens::gemm and telens::gemm_accumulate: unpacks the schemas' arguments once
// into structs and checks them in the same way on every device.
struct GemmArguments {
  GemmOperand a;
  GemmOperand b;
  const at::Tensor& bias;  // has out_dtype, or is undefined
  at::ScalarType out_dtype;
  bool split_accumulator;
};

struct GemmAccumulateArguments {
  GemmOperand a;
  GemmOperand b;
  const at::Tensor& out;
  bool split_accumulator;
};

void check_gemm(const GemmArguments& arguments);
void check_gemm_accumulate(const GemmAccumulateArguments& arguments);

// Returns true if a tensor_scale has more than one element, which means scales of rows
// (GemmByRows).
inline bool has_scales_of_rows(const GemmOperand& a, const GemmOperand& b) {
  const auto has = [](const at::Tensor& scale) { return scale.defined() && scale.numel() != 1; };
  return has(a.tensor_scale) || has(b.tensor_scale);
}

// The function with the schema of telens::gemm for a backend's kernel, which receives checked
// arguments:
//   library.impl("gemm", ops::gemm_schema<kernel>);
template <at::Tensor (*kernel)(const GemmArguments&)>
at::Tensor gemm_schema(const at::Tensor& a, const at::Tensor& a_scale_inv,
                       const std::optional<at::Tensor>& a_tensor_scale, std::int64_t a_format,
                       std::int64_t a_mode, const at::Tensor& b, const at::Tensor& b_scale_inv,
                       const std::optional<at::Tensor>& b_tensor_scale, std::int64_t b_format,
                       std::int64_t b_mode, const std::optional<at::Tensor>& bias,
                       at::ScalarType out_dtype, bool split_accumulator, bool power_of_2_scales) {
  const GemmArguments arguments{
      {a, a_scale_inv, or_undefined(a_tensor_scale), static_cast<FormatId>(a_format),
       static_cast<ScalingMode>(a_mode), power_of_2_scales},
      {b, b_scale_inv, or_undefined(b_tensor_scale), static_cast<FormatId>(b_format),
       static_cast<ScalingMode>(b_mode), power_of_2_scales},
      or_undefined(bias),
      out_dtype,
      split_accumulator};
  check_gemm(arguments);
  if (!has_scales_of_rows(arguments.a, arguments.b)) return kernel(arguments);
  const GemmByRows by_rows(arguments.a, arguments.b);
  const at::Tensor none;
  at::Tensor sums =
      by_rows.scaled(kernel({by_rows.a(), by_rows.b(), none, at::kFloat, split_accumulator}));
  const at::Tensor added = bias_of_16_bits(arguments.bias);
  return (added.defined() ? sums.add_(added) : sums).to(out_dtype);
}

// Like gemm_schema, for telens::gemm_accumulate.
template <void (*kernel)(const GemmAccumulateArguments&)>
void gemm_accumulate_schema(const at::Tensor& a, const at::Tensor& a_scale_inv,
                            const std::optional<at::Tensor>& a_tensor_scale, std::int64_t a_format,
                            std::int64_t a_mode, const at::Tensor& b, const at::Tensor& b_scale_inv,
                            const std::optional<at::Tensor>& b_tensor_scale, std::int64_t b_format,
                            std::int64_t b_mode, const at::Tensor& out, bool split_accumulator,
                            bool power_of_2_scales) {
  const GemmAccumulateArguments arguments{
      {a, a_scale_inv, or_undefined(a_tensor_scale), static_cast<FormatId>(a_format),
       static_cast<ScalingMode>(a_mode), power_of_2_scales},
      {b, b_scale_inv, or_undefined(b_tensor_scale), static_cast<FormatId>(b_format),
       static_cast<ScalingMode>(b_mode), power_of_2_scales},
      out,
      split_accumulator};
  check_gemm_accumulate(arguments);
  if (!has_scales_of_rows(arguments.a, arguments.b)) return kernel(arguments);
  const GemmByRows by_rows(arguments.a, arguments.b);
  const at::Tensor sums = at::zeros(out.sizes(), out.options());
  kernel({by_rows.a(), by_rows.b(), sums, split_accumulator});
  at::Tensor(out).add_(by_rows.scaled(sums));
}

}  // namespace telens::ops
