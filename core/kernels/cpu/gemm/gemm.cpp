// The quantized GEMM on the CPU: exact products without FP8 hardware.
//
// Every FP8 and FP6 value is a BF16 value. It remains one after multiplication by a power-of-two
// block scale, if the product is in BF16's normal range. An E2M1 value times an E4M3 scale is a
// BF16 value (2 + 4 significant bits). So decoding is exact, and a BF16 GEMM multiplies exactly (8
// x 8 significant bits fit FP32's 24) and accumulates in FP32. If the scales show that values or
// products may leave the normal range, operands are decoded to FP32. Per-tensor scales are applied
// to the FP32 sum as alpha, and the result is rounded once. If FP32 cannot hold the intermediate
// values between scales and result, the product is computed in FP64.
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/gemm/decode_row_by_row.h"
#include "core/ops/block_quantize.h"
#include "core/ops/device.h"
#include "core/ops/gemm.h"
#include "core/ops/quantize.h"

namespace telens {
namespace {

using ops::GemmOperand;

// Bounds of an operand's values, derived from block scales without decoding.

// Calls visit with each scale as T, in memory order.
template <typename T, typename Visitor>
void for_each_scale(const at::Tensor& scales, const Visitor& visit) {
  const at::Tensor dense = scales.is_non_overlapping_and_dense() ? scales : scales.contiguous();
  const auto* const values = static_cast<const T*>(dense.const_data_ptr());
  for (std::int64_t i = 0; i < dense.numel(); ++i) visit(values[i]);
}

template <typename Format>
constexpr int kSmallestExponent = Format::kMinExponent - Format::kMantissaBits;

int exponent_of_smallest_code(FormatId format) {
  return dispatch_element_format(format, "gemm",
                                 []<typename Format>() { return kSmallestExponent<Format>; });
}

// Code 0 is the scale of blocks of zeros and of the smallest values.
bool has_values_under_scale_code_0(const GemmOperand& operand) {
  const auto scales = operand.scale_inv.accessor<std::uint8_t, 2>();
  const auto codes = operand.codes.accessor<std::uint8_t, 2>();
  const std::int64_t length = block_length(operand.mode);
  const std::uint8_t magnitude_mask = dispatch_element_format(
      operand.format, "gemm", []<typename Format>() { return Format::kMagnitudeMask; });
  for (std::int64_t row = 0; row < scales.size(0); ++row) {
    for (std::int64_t block = 0; block < scales.size(1); ++block) {
      if (scales[row][block] != 0) continue;
      const std::int64_t end = std::min(codes.size(1), (block + 1) * length);
      for (std::int64_t k = block * length; k < end; ++k) {
        if ((codes[row][k] & magnitude_mask) != 0) return true;
      }
    }
  }
  return false;
}

// The exponent of the smallest E8M0 scale in use.
int exponent_of_smallest_e8m0(const GemmOperand& operand) {
  std::uint8_t smallest_less_1 =
      E8M0::kNanCode;  // smallest code above 0, minus 1: code 0 wraps around
  bool has_code_0 = false;
  for_each_scale<std::uint8_t>(operand.scale_inv, [&](std::uint8_t code) {
    smallest_less_1 = std::min(smallest_less_1, static_cast<std::uint8_t>(code - 1));
    has_code_0 |= code == 0;
  });
  const int smallest =
      has_code_0 && has_values_under_scale_code_0(operand) ? 0 : smallest_less_1 + 1;
  return smallest - E8M0::kBias;
}

// The exponent of the smallest FP32 scale, which is a power of two.
int exponent_of_smallest_power(const at::Tensor& scales) {
  // Scales are positive, so that their bits have the order of their values.
  std::int32_t smallest = std::numeric_limits<std::int32_t>::max();
  for_each_scale<std::int32_t>(scales,
                               [&](std::int32_t bits) { smallest = std::min(smallest, bits); });
  return (smallest >> FP32::kMantissaBits) - FP32::kBias;
}

// Exponents of finite nonzero FP32 numbers.
struct ExponentRange {
  int smallest = std::numeric_limits<int>::max();
  int largest = std::numeric_limits<int>::min();
};

ExponentRange get_exponents(const at::Tensor& scales) {
  std::uint32_t smallest = FP32::kTopExponentCode;
  std::uint32_t largest = 0;
  for_each_scale<std::uint32_t>(scales, [&](std::uint32_t bits) {
    const std::uint32_t magnitude = bits & FP32::kMagnitudeMask;
    const bool counts = magnitude != 0 && magnitude < FP32::kTopExponentCode;
    smallest = std::min(smallest, counts ? magnitude : smallest);
    largest = std::max(largest, counts ? magnitude : largest);
  });
  if (largest == 0) return {};
  return {std::ilogb(std::bit_cast<float>(smallest)), std::ilogb(std::bit_cast<float>(largest))};
}

int exponent_of_largest_e8m0(const at::Tensor& scales) {
  std::uint8_t largest = 0;
  for_each_scale<std::uint8_t>(scales, [&](std::uint8_t code) {
    largest = std::max(largest, code == E8M0::kNanCode ? largest : code);
  });
  return largest - E8M0::kBias;
}

int exponent_of_largest_code(FormatId format) {
  return dispatch_element_format(format, "gemm",
                                 []<typename Format>() { return Format::kMaxExponent; });
}

// The product of two per-tensor scales. LibTorch's products ignore a factor that is NaN.
bool product_leaves_fp32(float a, float b) { return !std::isnormal(a * b); }

// A sum over a block of K times the left scale: a normal FP32 number, or zero.
bool sums_leave_fp32(const GemmOperand& left) {
  // 128 x largest E5M2 x largest E4M3 < 2^32. The product of the smallest values is 2^-25.
  constexpr int kLargestSum = 32;
  constexpr int kSmallestSum = kSmallestExponent<E5M2> + kSmallestExponent<E4M3>;
  const auto [smallest, largest] = get_exponents(left.scale_inv);
  return largest != ExponentRange().largest && (largest >= FP32::kMaxExponent + 1 - kLargestSum ||
                                                smallest < FP32::kMinExponent - kSmallestSum);
}

// Returns true if all FP32 scales of a 128-block tensor are normal powers of two. 2^-127, the
// smallest scale, is not normal.
bool has_powers_of_two(const at::Tensor& scales) {
  constexpr std::int32_t kMantissa = (1 << FP32::kMantissaBits) - 1;
  std::int32_t bits_in_use = 0;
  for_each_scale<std::int32_t>(scales, [&](std::int32_t bits) { bits_in_use |= bits; });
  return (bits_in_use & kMantissa) == 0;
}

// Returns true if a product of the operands may leave FP32's range although the result does not:
// - the product of two per-tensor scales is not a normal number (for example NaN);
// - values under power-of-two block scales exceed FP32's largest number;
// - scales of 128-blocks are not powers of two, and sums under the left scale only may leave the
//   range.
bool leaves_fp32(const GemmOperand& a, const GemmOperand& b) {
  const auto one_of = [&](const auto& values_leave) { return values_leave(a) || values_leave(b); };
  const auto beyond = [](const GemmOperand& operand, int largest_scale) {
    return largest_scale + exponent_of_largest_code(operand.format) > FP32::kMaxExponent;
  };
  if (a.mode == ScalingMode::tensor) {
    return product_leaves_fp32(*a.scale_inv.const_data_ptr<float>(),
                               *b.scale_inv.const_data_ptr<float>());
  }
  if (scheme(a.mode).has_tensor_scale()) {
    return product_leaves_fp32(*a.tensor_scale.const_data_ptr<float>(),
                               *b.tensor_scale.const_data_ptr<float>());
  }
  if (scheme(a.mode).scale_format == FormatId::e8m0) {
    return one_of([&](const GemmOperand& operand) {
      return beyond(operand, exponent_of_largest_e8m0(operand.scale_inv));
    });
  }
  if (!has_powers_of_two(a.scale_inv) || !has_powers_of_two(b.scale_inv)) return sums_leave_fp32(a);
  return one_of([&](const GemmOperand& operand) {
    const int largest = get_exponents(operand.scale_inv).largest;
    return largest != ExponentRange().largest && beyond(operand, largest);
  });
}

// Returns an exponent e such that all values of the operand, without a per-tensor scale, are
// multiples of 2^e. 2^e is the smallest nonzero value of the format times the smallest block scale.
// Scales of 128-blocks must be powers of two. Blocks of zeros are ignored under E8M0 scales; in
// 128-blocks they have scale 1, which is used.
int exponent_of_smallest_value(const GemmOperand& operand) {
  const int of_codes = exponent_of_smallest_code(operand.format);
  if (operand.mode == ScalingMode::tensor) return of_codes;
  switch (scheme(operand.mode).scale_format) {
    case FormatId::e8m0:
      return of_codes + exponent_of_smallest_e8m0(operand);
    case FormatId::e4m3:
      return of_codes + kSmallestExponent<E4M3>;
    default:
      return of_codes + exponent_of_smallest_power(operand.scale_inv);
  }
}

// The products.

constexpr std::string_view kFp32Kernel = "FP32 GEMM of decoded operands";

// Below this number of multiplications LibTorch does not call oneDNN. Its own loop rounds
// intermediate sums to BF16.
constexpr std::int64_t kSmallProduct = 16 * 16 * 16;

bool is_scaled_in_blocks(const GemmOperand& operand) { return operand.mode != ScalingMode::tensor; }

at::Tensor decode_blocks(const GemmOperand& operand, at::ScalarType dtype) {
  return ops::dequantize_blocks({operand.codes, operand.scale_inv, {}}, operand.format,
                                operand.mode, dtype);
}

// The operands without per-tensor scales. LibTorch's products take up to 1.4 times as long if K is
// the outer dimension of the left operand (wgrad). The layout of the right operand does not matter.
at::Tensor decode_left(const GemmOperand& operand, at::ScalarType dtype) {
  return is_scaled_in_blocks(operand)
             ? decode_blocks(operand, dtype)
             : kernels::decode_row_by_row(operand.codes, operand.format, dtype);
}

at::Tensor decode_right(const GemmOperand& operand, at::ScalarType dtype) {
  return is_scaled_in_blocks(operand) ? decode_blocks(operand, dtype)
                                      : ops::decode_fp8(operand.codes, operand.format, dtype);
}

// The factor of the whole sum.
float scale_of_tensor(const GemmOperand& operand) {
  if (operand.mode == ScalingMode::tensor) return *operand.scale_inv.const_data_ptr<float>();
  return operand.tensor_scale.defined() ? *operand.tensor_scale.const_data_ptr<float>() : 1.0F;
}

float scale_of_tensors(const GemmOperand& a, const GemmOperand& b) {
  return scale_of_tensor(a) * scale_of_tensor(b);
}

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

// Returns the scales of 128-blocks for each row, [rows, blocks of K].
at::Tensor scales_of_rows(const GemmOperand& operand) {
  return operand.mode == ScalingMode::block_2d
             ? ops::repeat_scales(operand.scale_inv, block_height(operand.mode),
                                  operand.codes.size(0))
             : operand.scale_inv;
}

// Returns the FP32 values of the elements of a tensor with E8M0 scales.
at::Tensor decode_under_scale_1(const GemmOperand& operand) {
  const at::Tensor ones = at::full_like(operand.scale_inv, E8M0::kBias);
  return ops::dequantize_blocks({operand.codes, ones, {}}, operand.format, operand.mode,
                                at::kFloat);
}

at::Tensor get_values(const GemmOperand& operand) {
  if (scheme(operand.mode).has_tensor_scale()) {  // a code times an E4M3 scale is an FP32 number
    return ops::dequantize_blocks({operand.codes, operand.scale_inv, {}}, operand.format,
                                  operand.mode, at::kFloat)
        .to(at::kDouble)
        .mul_(operand.tensor_scale.to(at::kDouble));
  }
  const bool has_e8m0_scales = scheme(operand.mode).scale_format == FormatId::e8m0;
  const at::Tensor values = has_e8m0_scales
                                ? decode_under_scale_1(operand)
                                : ops::decode_fp8(operand.codes, operand.format, at::kFloat);
  if (operand.mode == ScalingMode::tensor) {
    return values.to(at::kDouble).mul_(operand.scale_inv.to(at::kDouble));
  }
  const at::Tensor scales =
      has_e8m0_scales ? decoded_e8m0(operand.scale_inv) : scales_of_rows(operand).to(at::kDouble);
  return values.to(at::kDouble)
      .mul_(scales.repeat_interleave(block_length(operand.mode), 1).narrow(1, 0, values.size(1)));
}

// Returns the product as FP32 [M, N]. The operands' values, with all scales, are multiplied and
// added in FP64 and rounded once: for scales that FP32 cannot apply one after the other.
at::Tensor product_in_double(const GemmOperand& a, const GemmOperand& b) {
  ops::report_gemm_choice(
      {"FP64 GEMM of decoded operands", "scales that leave FP32's range one by one"});
  return at::mm(get_values(a), get_values(b).t()).to(at::kFloat);
}

// Returns true if every value is normal in BF16 and every product is normal in FP32: native BF16
// products flush smaller ones to zero. A sum of multiples of a normal number is normal too.
bool are_normal(const GemmOperand& a, const GemmOperand& b) {
  const int left = exponent_of_smallest_value(a);
  const int right = exponent_of_smallest_value(b);
  return std::min({left, right, left + right}) >= BF16::kMinExponent;
}

// Block scales that are not powers of two are applied in FP32 to the sum over each block of K.
at::Tensor gemm_by_blocks_of_k(const GemmOperand& a, const GemmOperand& b) {
  ops::report_gemm_choice({"FP32 GEMM by blocks of K", "block scales are not powers of two"});
  const at::Tensor left = ops::decode_fp8(a.codes, a.format, at::kFloat);
  const at::Tensor right = ops::decode_fp8(b.codes, b.format, at::kFloat);
  const at::Tensor left_scales = scales_of_rows(a);
  const at::Tensor right_scales = scales_of_rows(b);
  const std::int64_t k = left.size(1);
  const std::int64_t length = block_length(a.mode);
  at::Tensor out = at::zeros({left.size(0), right.size(0)}, left.options());
  for (std::int64_t begin = 0, block = 0; begin < k; begin += length, ++block) {
    const std::int64_t size = std::min(length, k - begin);
    at::Tensor sum = at::mm(left.narrow(1, begin, size), right.narrow(1, begin, size).t());
    sum.mul_(left_scales.narrow(1, block, 1)).mul_(right_scales.narrow(1, block, 1).t());
    out.add_(sum);
  }
  return out;
}

// Returns the reason why the operands are not multiplied in BF16; "" if they are.
std::string_view obstacle_to_bf16(const GemmOperand& a, const GemmOperand& b,
                                  at::ScalarType out_dtype) {
  if (!ops::has_native_bf16()) return "the processor does not support BF16 products";
  if (out_dtype != at::kBFloat16) return "the output is not BF16";
  const bool small = a.codes.size(0) * a.codes.size(1) * b.codes.size(0) <= kSmallProduct;
  if (small) return "the product is too small for oneDNN";
  return are_normal(a, b) ? "" : "values or products below BF16's normal range";
}

bool goes_by_blocks_of_k(const GemmOperand& a, const GemmOperand& b) {
  return scheme(a.mode).has_128_blocks() &&
         !(has_powers_of_two(a.scale_inv) && has_powers_of_two(b.scale_inv));
}

// Returns the FP32 product if the scales do not allow a single GEMM; an undefined tensor if they
// do.
at::Tensor product_of_unruly_scales(const GemmOperand& a, const GemmOperand& b) {
  if (leaves_fp32(a, b)) return product_in_double(a, b);
  return goes_by_blocks_of_k(a, b) ? gemm_by_blocks_of_k(a, b) : at::Tensor();
}

// Sums are FP32 for any value of split_accumulator.
at::Tensor gemm(const ops::GemmArguments& arguments) {
  const auto& [a, b, given_bias, out_dtype, split_accumulator] = arguments;
  const at::Tensor bias = ops::bias_of_16_bits(given_bias);
  if (const at::Tensor sums = product_of_unruly_scales(a, b); sums.defined()) {
    return (bias.defined() ? sums.add_(bias) : sums).to(out_dtype);
  }
  const std::string_view obstacle = obstacle_to_bf16(a, b, out_dtype);
  ops::report_gemm_choice(
      {obstacle.empty() ? "BF16 GEMM of decoded operands" : kFp32Kernel, obstacle});
  const at::ScalarType dtype = obstacle.empty() ? at::kBFloat16 : at::kFloat;
  const at::Tensor left = decode_left(a, dtype);
  const at::Tensor right = decode_right(b, dtype);
  const float alpha = scale_of_tensors(a, b);
  at::Tensor out = at::empty({left.size(0), right.size(0)}, left.options());
  if (bias.defined()) {
    at::addmm_out(out, bias.to(left.scalar_type()), left, right.t(), 1, alpha);
  } else {
    at::addmm_out(out, out, left, right.t(), 0, alpha);
  }
  return out.to(out_dtype);
}

void gemm_accumulate(const ops::GemmAccumulateArguments& arguments) {
  const auto& [a, b, out, split_accumulator] = arguments;
  at::Tensor sum = out;
  if (const at::Tensor product = product_of_unruly_scales(a, b); product.defined()) {
    sum.add_(product);
    return;
  }
  // LibTorch does not support adding a product of BF16 operands to an FP32 tensor.
  ops::report_gemm_choice({kFp32Kernel, "the output is FP32"});
  at::addmm_out(sum, out, decode_left(a, at::kFloat), decode_right(b, at::kFloat).t(), 1,
                scale_of_tensors(a, b));
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("gemm", telens::ops::gemm_schema<telens::gemm>);
  library.impl("gemm_accumulate", telens::ops::gemm_accumulate_schema<telens::gemm_accumulate>);
}
