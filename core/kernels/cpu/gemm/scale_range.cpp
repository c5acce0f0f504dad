#include "core/kernels/cpu/gemm/scale_range.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/formats/formats.h"

namespace telens {
namespace {

using ops::GemmOperand;

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
  return format == FormatId::e4m3   ? kSmallestExponent<E4M3>
         : format == FormatId::e5m2 ? kSmallestExponent<E5M2>
                                    : kSmallestExponent<E2M1>;
}

// Code 0 is the scale of blocks of zeros and of the smallest values.
bool has_values_under_scale_code_0(const GemmOperand& operand) {
  const auto scales = operand.scale_inv.accessor<std::uint8_t, 2>();
  const auto codes = operand.codes.accessor<std::uint8_t, 2>();
  const std::int64_t length = block_length(operand.mode);
  for (std::int64_t row = 0; row < scales.size(0); ++row) {
    for (std::int64_t block = 0; block < scales.size(1); ++block) {
      if (scales[row][block] != 0) continue;
      const std::int64_t end = std::min(codes.size(1), (block + 1) * length);
      for (std::int64_t k = block * length; k < end; ++k) {
        if ((codes[row][k] & E4M3::kMagnitudeMask) != 0) return true;  // E5M2 has the same mask
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
  return format == FormatId::e5m2 ? E5M2::kMaxExponent : E4M3::kMaxExponent;
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

}  // namespace

bool leaves_fp32(const GemmOperand& a, const GemmOperand& b) {
  const auto one_of = [&](const auto& values_leave) { return values_leave(a) || values_leave(b); };
  const auto beyond = [](const GemmOperand& operand, int largest_scale) {
    return largest_scale + exponent_of_largest_code(operand.format) > FP32::kMaxExponent;
  };
  if (a.mode == ScalingMode::tensor) {
    return product_leaves_fp32(*a.scale_inv.const_data_ptr<float>(),
                               *b.scale_inv.const_data_ptr<float>());
  }
  if (is_packed_fp4(a.mode)) {
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

bool has_powers_of_two(const at::Tensor& scales) {
  constexpr std::int32_t kMantissa = (1 << FP32::kMantissaBits) - 1;
  std::int32_t bits_in_use = 0;
  for_each_scale<std::int32_t>(scales, [&](std::int32_t bits) { bits_in_use |= bits; });
  return (bits_in_use & kMantissa) == 0;
}

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

}  // namespace telens
