// For backends of telens::gemm and telens::gemm_accumulate: unpacks the schemas' arguments once
// into structs and checks them in the same way on every device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <optional>

#include "core/ops/gemm.h"
#include "core/ops/gemm_by_rows.h"
#include "core/ops/optional_tensor.h"

namespace telens::ops {

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
// (gemm_by_rows.h).
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
