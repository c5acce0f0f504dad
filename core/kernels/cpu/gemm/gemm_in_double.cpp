#include "core/kernels/cpu/gemm/gemm_in_double.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <cmath>
#include <limits>

#include "core/formats/formats.h"
#include "core/ops/block_quantize_checks.h"
#include "core/ops/gemm_choice.h"
#include "core/ops/quantize.h"

namespace telens {
namespace {

using ops::GemmOperand;

at::Tensor decoded_e8m0(const at::Tensor& codes) {
  const at::Tensor contiguous = codes.contiguous();
  at::Tensor values = at::empty(codes.sizes(), codes.options().dtype(at::kDouble));
  const auto* const from = contiguous.const_data_ptr<std::uint8_t>();
  auto* const to = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    to[i] = from[i] == E8M0::kNanCode ? std::numeric_limits<double>::quiet_NaN()
                                      : std::ldexp(1.0, from[i] - E8M0::kBias);
  }
  return values;
}

at::Tensor get_values(const GemmOperand& operand) {
  if (is_packed_fp4(operand.mode)) {  // a code times an E4M3 scale is an FP32 number
    return ops::dequantize_blocks({operand.codes, operand.scale_inv, {}}, operand.format,
                                  operand.mode, at::kFloat)
        .to(at::kDouble)
        .mul_(operand.tensor_scale.to(at::kDouble));
  }
  const at::Tensor values =
      ops::decode_fp8(operand.codes, operand.format, at::kFloat).to(at::kDouble);
  if (operand.mode == ScalingMode::tensor) return values.mul(operand.scale_inv.to(at::kDouble));
  const at::Tensor scales = scheme(operand.mode).scale_format == FormatId::e8m0
                                ? decoded_e8m0(operand.scale_inv)
                                : scales_of_rows(operand).to(at::kDouble);
  return values.mul(
      scales.repeat_interleave(block_length(operand.mode), 1).narrow(1, 0, values.size(1)));
}

}  // namespace

at::Tensor scales_of_rows(const GemmOperand& operand) {
  return operand.mode == ScalingMode::block_2d
             ? ops::repeat_scales(operand.scale_inv, block_height(operand.mode),
                                  operand.codes.size(0))
             : operand.scale_inv;
}

at::Tensor product_in_double(const GemmOperand& a, const GemmOperand& b) {
  ops::report_gemm_choice(
      {"FP64 GEMM of decoded operands", "scales that leave FP32's range one by one"});
  return at::mm(get_values(a), get_values(b).t()).to(at::kFloat);
}

}  // namespace telens
