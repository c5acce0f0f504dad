#include "core/kernels/cuda/gemm/gemm_native.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>

#include "core/kernels/cuda/gemm/launchers.h"
#include "core/kernels/cuda/gemm/lt_product.h"
#include "core/kernels/cuda/quantize/launchers.h"
#include "core/ops/block_quantize.h"

namespace telens::cuda {
namespace {

using ops::GemmOperand;

// Alignment in bytes that FP8 products require of addresses and of rows of codes and scales.
constexpr std::int64_t kAlignment = 16;

bool begins_aligned(const at::Tensor& tensor) {
  return is_aligned(tensor.const_data_ptr(), kAlignment);
}

// Returns the bytes [rows, columns] of `transposed` in row-major order; in memory they are
// [columns, rows].
at::Tensor turned(const DeviceScope& scope, const at::Tensor& transposed) {
  const at::Tensor in_memory = transposed.t();
  const at::Tensor dense = at::empty(transposed.sizes(), transposed.options());
  check_launch("gemm",
               launch_transpose_codes({in_memory.const_data_ptr<std::uint8_t>(), in_memory.size(0),
                                       in_memory.size(1), dense.mutable_data_ptr<std::uint8_t>()},
                                      scope.context()));
  return dense;
}

// Returns the codes with K along the rows, or along the columns if the product supports it.
at::Tensor ordered_codes(const DeviceScope& scope, const at::Tensor& codes, bool takes_transposed) {
  if (codes.is_contiguous()) return begins_aligned(codes) ? codes : codes.clone();
  const bool whole_packs = codes.size(0) % kAlignment == 0 && codes.size(1) % kAlignment == 0;
  if (codes.t().is_contiguous() && begins_aligned(codes) && whole_packs) {
    return takes_transposed ? codes : turned(scope, codes);
  }
  return codes.contiguous();
}

template <typename Scale>
ScaleMatrix<Scale> matrix_of_scales(const at::Tensor& scales) {
  return {scales.const_data_ptr<Scale>(), scales.size(0), scales.size(1), scales.stride(0),
          scales.stride(1)};
}

at::Tensor tiled(const DeviceScope& scope, const at::Tensor& scales) {
  const at::Tensor tiles = at::empty(
      {count_scale_tiles(scales.size(0), scales.size(1)), kScaleTileBytes}, scales.options());
  check_launch("gemm", launch_tile_scales({matrix_of_scales<std::uint8_t>(scales),
                                           tiles.mutable_data_ptr<std::uint8_t>()},
                                          scope.context()));
  return tiles;
}

// Returns the rows contiguously, padded to a multiple.
at::Tensor padded(const DeviceScope& scope, const at::Tensor& scales, std::int64_t multiple) {
  const std::int64_t width = ops::rounded_up_quotient(scales.size(1), multiple) * multiple;
  if (width == scales.size(1) && scales.is_contiguous() && begins_aligned(scales)) return scales;
  const at::Tensor out = at::empty({scales.size(0), width}, scales.options());
  check_launch("gemm", launch_pad_scales(
                           {matrix_of_scales<float>(scales), width, out.mutable_data_ptr<float>()},
                           scope.context()));
  return out;
}

// Expands power-of-two scales of 128-blocks to the smaller blocks of `mode`.
at::Tensor expanded(const DeviceScope& scope, const GemmOperand& operand, ScalingMode mode) {
  const std::int64_t lines = operand.codes.size(0);
  const std::int64_t blocks = ops::rounded_up_quotient(operand.codes.size(1), block_length(mode));
  const at::Tensor tiles = at::empty({count_scale_tiles(lines, blocks), kScaleTileBytes},
                                     operand.scale_inv.options().dtype(at::kByte));
  check_launch("gemm", launch_expand_scales(
                           {matrix_of_scales<float>(operand.scale_inv), block_height(operand.mode),
                            lines, blocks, tiles.mutable_data_ptr<std::uint8_t>()},
                           scope.context()));
  return tiles;
}

at::Tensor ordered_scales(const DeviceScope& scope, const GemmOperand& operand,
                          std::optional<ScalingMode> as) {
  if (as) return expanded(scope, operand, *as);
  switch (operand.mode) {
    case ScalingMode::tensor:
      return operand.scale_inv;
    case ScalingMode::block_1d:
      return padded(scope, operand.scale_inv.t(), 1);
    case ScalingMode::block_2d:
      return padded(scope, operand.scale_inv, kSquareScalesMultiple);
    default:
      return tiled(scope, operand.scale_inv);  // one-byte scales
  }
}

// An operand in cuBLASLt's layout, with ownership of the memory that it points to.
struct Prepared {
  at::Tensor codes;
  at::Tensor scales;
  LtOperand operand;
};

Prepared prepare(const DeviceScope& scope, const GemmOperand& operand, const GemmPlan& plan) {
  Prepared prepared{ordered_codes(scope, operand.codes, plan.takes_transposed),
                    ordered_scales(scope, operand, plan.scales_as),
                    {}};
  prepared.operand = get_operand(prepared.codes, operand.format);
  prepared.operand.leading *= scheme(operand.mode).codes_per_byte();  // in values, not bytes
  prepared.operand.scales = prepared.scales.const_data_ptr();
  prepared.operand.scaling = plan.scales_as.value_or(operand.mode);
  return prepared;
}

}  // namespace

std::int64_t values_along_k(const GemmOperand& operand) {
  return operand.codes.size(1) * scheme(operand.mode).codes_per_byte();
}

bool try_native(const DeviceScope& scope, const NativeGemm& native, const at::Tensor& out) {
  const GemmOperand& a = native.a;
  const GemmOperand& b = native.b;
  const Prepared left = prepare(scope, a, native.plan);
  const Prepared right = prepare(scope, b, native.plan);
  LtGemm gemm{.m = a.codes.size(0),
              .n = b.codes.size(0),
              .k = values_along_k(a),
              .a = left.operand,
              .b = right.operand,
              .out = out.mutable_data_ptr(),
              .out_format = get_format(out.scalar_type()),
              .out_leading = out.size(1),
              .accumulate = native.accumulate,
              .fast_accumulation = native.fast_accumulation && a.mode == ScalingMode::tensor};
  if (native.bias.defined()) {
    gemm.bias = native.bias.const_data_ptr();
    gemm.bias_format = get_format(native.bias.scalar_type());
  }
  at::Tensor alpha;
  at::Tensor beta;
  if (is_packed_fp4(a.mode)) {
    alpha = at::mul(a.tensor_scale, b.tensor_scale);
    beta = at::full({1}, native.accumulate ? 1 : 0, alpha.options());
    gemm.alpha = alpha.const_data_ptr<float>();
    gemm.beta = beta.const_data_ptr<float>();
  }
  return try_product(scope, gemm, out.device());
}

}  // namespace telens::cuda
