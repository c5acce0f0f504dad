#include "core/kernels/cuda/gemm/gemm_emulation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "core/formats/formats.h"
#include "core/ops/block_quantize.h"
#include "core/ops/quantize.h"

namespace telens::cuda {
namespace {

using ops::GemmOperand;

// Exponents moved out of the rows of an operand: 2 x half, and 2^half, for each row.
struct RowPowers {
  at::Tensor half;    // int32 [rows, 1]
  at::Tensor factor;  // FP32 [rows, 1]: 2^half
};

// 2^exponent for exponents of normal numbers, built from bits: pow is not exact on every device.
at::Tensor power_of_two(const at::Tensor& exponent) {
  return at::mul(at::add(exponent, FP32::kBias), std::int64_t{1} << FP32::kMantissaBits)
      .to(at::kInt)
      .view(at::kFloat);
}

// largest: int32 [rows, 1], the biased exponent (0 to 255) of a row's largest scale.
RowPowers row_powers(const at::Tensor& largest) {
  const at::Tensor half = at::div(at::sub(largest, FP32::kBias), 2, "floor");  // -64 to 64
  return {half, power_of_two(half)};
}

// Multiplies each sum by (2^half_a 2^half_b)^2, in two steps. Neither leaves FP32's range if the
// result does not.
void put_back(at::Tensor& sums, const RowPowers& a, const RowPowers& b) {
  const at::Tensor factor = at::mul(a.factor, b.factor.t());
  sums.mul_(factor).mul_(factor);
}

at::Tensor values_of_blocks(const GemmOperand& operand, const at::Tensor& scale_inv) {
  return ops::dequantize_blocks({operand.codes, scale_inv, {}}, operand.format, operand.mode,
                                at::kBFloat16);
}

at::Tensor dequantize_handle(const GemmOperand& operand) {
  return ops::decode_fp8(operand.codes, operand.format, at::kBFloat16);
}

struct Rescaled {
  at::Tensor values;  // BF16
  RowPowers powers;
};

Rescaled rescaled(const GemmOperand& operand) {
  const at::Tensor codes = operand.scale_inv.to(at::kInt);
  RowPowers powers = row_powers(codes.amax(1, true));
  // A NaN stays a NaN. A scale that would be below the smallest one becomes the smallest one.
  const at::Tensor moved = at::sub(codes, powers.half, 2).clamp_min(0);
  const at::Tensor scales = at::where(codes == E8M0::kNanCode, codes, moved).to(at::kByte);
  return {values_of_blocks(operand, scales), std::move(powers)};
}

at::Tensor sums_under_e8m0(const GemmOperand& a, const GemmOperand& b,
                           const Bf16Product& multiply) {
  const Rescaled left = rescaled(a);
  const Rescaled right = rescaled(b);
  at::Tensor sums = multiply(left.values, right.values);
  put_back(sums, left.powers, right.powers);
  return sums;
}

struct RowScales {
  at::Tensor scales;  // FP32 [rows, blocks of K]; a row's largest scale is in [1, 4)
  RowPowers powers;
};

RowScales row_scales(const GemmOperand& operand) {
  const at::Tensor scales =
      operand.mode == ScalingMode::block_2d
          ? ops::repeat_scales(operand.scale_inv, block_height(operand.mode), operand.codes.size(0))
          : operand.scale_inv;
  const at::Tensor bits = scales.abs().amax(1, true).view(at::kInt);
  RowPowers powers =
      row_powers(at::div(bits, std::int64_t{1} << FP32::kMantissaBits, "floor").to(at::kInt));
  const at::Tensor inverse = power_of_two(at::neg(powers.half));
  return {at::mul(scales, inverse).mul_(inverse), std::move(powers)};
}

// Multiplies the sums by the scales of two tensors, whose product may leave FP32's range even if
// the result does not. In FP64 the product is exact. One pass over the sums reads and writes FP32
// and keeps doubles in registers only.
at::Tensor under_scales_of_tensors(at::Tensor sums, const at::Tensor& scale_a,
                                   const at::Tensor& scale_b) {
  return sums.mul_(at::mul(scale_a.view({1, 1}).to(at::kDouble), scale_b.view({1, 1})));
}

at::Tensor sums_by_blocks_of_k(const GemmOperand& a, const GemmOperand& b,
                               const Bf16Product& multiply) {
  const at::Tensor left = dequantize_handle(a);
  const at::Tensor right = dequantize_handle(b);
  const RowScales left_scales = row_scales(a);
  const RowScales right_scales = row_scales(b);
  const std::int64_t k = left.size(1);
  const std::int64_t length = block_length(a.mode);
  at::Tensor sums;
  for (std::int64_t begin = 0, block = 0; begin < k; begin += length, ++block) {
    const std::int64_t size = std::min(length, k - begin);
    at::Tensor of_block = multiply(left.narrow(1, begin, size), right.narrow(1, begin, size));
    of_block.mul_(left_scales.scales.narrow(1, block, 1))
        .mul_(right_scales.scales.narrow(1, block, 1).t());
    sums = block == 0 ? of_block : sums.add_(of_block);
  }
  put_back(sums, left_scales.powers, right_scales.powers);
  return sums;
}

}  // namespace

at::Tensor emulated_sums(const GemmOperand& a, const GemmOperand& b, const Bf16Product& multiply) {
  if (a.mode == ScalingMode::tensor) {
    return under_scales_of_tensors(multiply(dequantize_handle(a), dequantize_handle(b)),
                                   a.scale_inv, b.scale_inv);
  }
  if (scheme(a.mode).has_tensor_scale()) {
    return under_scales_of_tensors(
        multiply(values_of_blocks(a, a.scale_inv), values_of_blocks(b, b.scale_inv)),
        a.tensor_scale, b.tensor_scale);
  }
  return has_128_blocks(a.mode) ? sums_by_blocks_of_k(a, b, multiply)
                                : sums_under_e8m0(a, b, multiply);
}

at::Tensor with_bias(at::Tensor sums, const at::Tensor& bias, at::ScalarType dtype) {
  if (bias.defined()) sums.add_(bias);
  return sums.to(dtype);
}

}  // namespace telens::cuda
