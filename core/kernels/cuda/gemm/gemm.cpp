// The quantized GEMM on CUDA: cuBLASLt's product of the codes if card and shapes support it.
// Otherwise products of BF16 operands with FP32 sums, exact as on the CPU.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/gemm/cublaslt.h"
#include "core/kernels/cuda/gemm/gemm_emulation.h"
#include "core/kernels/cuda/gemm/gemm_plan.h"
#include "core/kernels/cuda/gemm/launchers.h"
#include "core/kernels/cuda/quantize/launchers.h"
#include "core/ops/block_quantize.h"
#include "core/ops/gemm.h"

namespace telens::cuda {
namespace {

using ops::GemmOperand;

// Returns the number of values, also if two codes share a byte.
std::int64_t values_along_k(const GemmOperand& operand) {
  return operand.codes.size(1) * scheme(operand.mode).codes_per_byte();
}

// ---- Products by cuBLASLt, of operands in its layout.

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

struct NativeGemm {
  const GemmPlan& plan;  // a native plan
  const ops::GemmOperand& a;
  const ops::GemmOperand& b;
  at::Tensor bias;  // 16-bit and dense, or undefined
  bool accumulate = false;
  bool fast_accumulation = false;  // if cuBLASLt supports it: per-tensor scales
};

// Writes the product to `out`, [M, N] and contiguous, or adds it. Rearranges codes and scales to
// cuBLASLt's layout if necessary. Returns false, without changing `out`, if cuBLASLt has no
// algorithm for the product.
[[nodiscard]] bool try_native(const DeviceScope& scope, const NativeGemm& native,
                              const at::Tensor& out) {
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
  if (scheme(a.mode).has_tensor_scale()) {
    alpha = at::mul(a.tensor_scale, b.tensor_scale);
    beta = at::full({1}, native.accumulate ? 1 : 0, alpha.options());
    gemm.alpha = alpha.const_data_ptr<float>();
    gemm.beta = beta.const_data_ptr<float>();
  }
  return try_product(scope, gemm, out.device());
}

// ---- The operators.

// 10 x major + minor.
int get_capability(const at::Device& device) {
  const auto attribute = [&](cudaDeviceAttr name) {
    int value = 0;
    check_launch("gemm", cudaDeviceGetAttribute(&value, name, device.index()));
    return value;
  };
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
         attribute(cudaDevAttrComputeCapabilityMinor);
}

GemmPlan make_plan(const GemmOperand& a, const GemmOperand& b, at::ScalarType out_dtype) {
  return plan_gemm({get_capability(a.codes.device()), a.format, a.mode, b.format, b.mode,
                    a.codes.size(0), b.codes.size(0), values_along_k(a), get_format(out_dtype),
                    a.power_of_2_scales && b.power_of_2_scales});
}

// The product for K = 0.
at::Tensor empty_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                         at::ScalarType out_dtype) {
  at::Tensor out = at::zeros({a.size(0), b.size(0)}, a.options().dtype(out_dtype));
  return bias.defined() ? out.add_(bias) : out;
}

// Returns FP32 sums before rounding.
at::Tensor emulated(const DeviceScope& scope, const GemmOperand& a, const GemmOperand& b,
                    const ops::GemmChoice& choice) {
  ops::report_gemm_choice(choice);
  return emulated_sums(a, b, [&](const at::Tensor& left, const at::Tensor& right) {
    return bf16_product(scope, left, right);
  });
}

void check_devices(const GemmOperand& a, const GemmOperand& b, const at::Tensor& other) {
  check_same_device(
      "gemm", {a.codes, a.scale_inv, a.tensor_scale, b.codes, b.scale_inv, b.tensor_scale, other});
}

bool is_over_nothing(const GemmOperand& a, const GemmOperand& b) {
  return a.codes.numel() == 0 || b.codes.numel() == 0;
}

at::Tensor gemm_cuda(const ops::GemmArguments& arguments) {
  const auto& [a, b, given_bias, out_dtype, split_accumulator] = arguments;
  check_devices(a, b, given_bias);
  const DeviceScope scope("gemm", a.codes);
  const at::Tensor bias = dense_bias(ops::bias_of_16_bits(given_bias));
  if (is_over_nothing(a, b)) return empty_product(a.codes, b.codes, bias, out_dtype);
  const GemmPlan plan = make_plan(a, b, out_dtype);
  if (!plan.native) {
    return with_bias(emulated(scope, a, b, plan.choice), bias, out_dtype);
  }
  at::Tensor out =
      at::empty({a.codes.size(0), b.codes.size(0)}, a.codes.options().dtype(out_dtype));
  if (!try_native(
          scope,
          {.plan = plan, .a = a, .b = b, .bias = bias, .fast_accumulation = !split_accumulator},
          out)) {
    return with_bias(emulated(scope, a, b, choice_without_algorithm(a.mode)), bias, out_dtype);
  }
  ops::report_gemm_choice(plan.choice);
  return out;
}

void gemm_accumulate_cuda(const ops::GemmAccumulateArguments& arguments) {
  const auto& [a, b, out, split_accumulator] = arguments;
  check_devices(a, b, out);
  const DeviceScope scope("gemm_accumulate", a.codes);
  if (is_over_nothing(a, b)) return;
  const GemmPlan plan = make_plan(a, b, at::kFloat);
  at::Tensor sum = out;
  if (!plan.native) {
    sum.add_(emulated(scope, a, b, plan.choice));
    return;
  }
  // A gradient that is a non-contiguous view, or whose address is not aligned to 16 bytes as FP8
  // products require, is accumulated in a second step.
  const bool in_place = out.is_contiguous() && begins_aligned(out);
  const at::Tensor target = in_place ? out : at::empty(out.sizes(), out.options());
  if (!try_native(scope,
                  {.plan = plan,
                   .a = a,
                   .b = b,
                   .bias = {},
                   .accumulate = in_place,
                   .fast_accumulation = !split_accumulator},
                  target)) {
    sum.add_(emulated(scope, a, b, choice_without_algorithm(a.mode)));
    return;
  }
  ops::report_gemm_choice(plan.choice);
  if (!in_place) sum.add_(target);
}

std::vector<std::string> gemm_algorithms_cuda(const at::Tensor&) { return lt_algorithms(); }

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("gemm", TORCH_FN(telens::ops::gemm_schema<telens::cuda::gemm_cuda>));
  library.impl("gemm_accumulate",
               TORCH_FN(telens::ops::gemm_accumulate_schema<telens::cuda::gemm_accumulate_cuda>));
  library.impl("gemm_algorithms", TORCH_FN(telens::cuda::gemm_algorithms_cuda));
}
