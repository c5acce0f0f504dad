// The product of block-scaled operands against FP64, and the conditions that decide in which
// precision the CPU computes it.
#include "core/ops/gemm.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/ops/block_quantize.h"

namespace telens::testing {
namespace {

using ops::BlockCodes;

constexpr std::int64_t kSize = 64;

// A matrix quantized along its rows, as one operand of a GEMM.
struct Operand {
  BlockCodes codes;
  ScalingMode mode;

  ops::GemmOperand view() const {
    return {codes.codes, codes.scale_inv, codes.tensor_scale, FormatId::e4m3, mode};
  }
  at::Tensor values() const {
    return ops::dequantize_blocks(codes, FormatId::e4m3, mode, at::kFloat).to(at::kDouble);
  }
};

Operand mxfp8(const at::Tensor& x) {
  return {ops::quantize_mxfp8(x, FormatId::e4m3, {}, {true, false}).rowwise, ScalingMode::mxfp8};
}

Operand blocks_of_128(const at::Tensor& x) {
  return {ops::quantize_fp8_blocks(x, FormatId::e4m3, {}, {true, false}).rowwise,
          ScalingMode::block_1d};
}

at::Tensor filled(double value) { return at::full({kSize, kSize}, value, at::kFloat); }

at::Tensor product(const Operand& a, const Operand& b) {
  return ops::gemm(a.view(), b.view(), {}, at::kBFloat16).to(at::kDouble);
}

// Expects the FP64 result within BF16's rounding, which is larger than the error of sums of 64 FP32
// terms.
void expect_product(const Operand& a, const Operand& b, const std::string& what) {
  const at::Tensor expected = a.values().mm(b.values().t());
  const at::Tensor found = product(a, b);
  EXPECT_LE((found - expected).abs().max().item<double>(),
            expected.abs().max().item<double>() * std::ldexp(1.0, -7))
      << what << ": " << found[0][0].item<double>() << " for " << expected[0][0].item<double>();
}

bool multiplies_in_bf16(const Operand& a, const Operand& b) {
  product(a, b);
  return ops::newest_gemm_choice().kernel == "BF16 GEMM of decoded operands";
}

TEST(GemmOfBlocks, preserves_products_that_underflow_in_bf16) {
  for (const auto& [quantize, name] : {std::pair{&mxfp8, "MXFP8"}, {&blocks_of_128, "128"}}) {
    for (const auto& [left, right] : {std::pair{-64, -66}, {-100, -25}, {-40, -88}}) {
      expect_product(quantize(filled(std::ldexp(1.0, left))),
                     quantize(filled(std::ldexp(1.5, right))),
                     fmt::format("{}: 2^{} by 1.5 x 2^{}", name, left, right));
    }
  }
}

TEST(GemmOfBlocks, preserves_values_under_the_smallest_scale) {
  at::Tensor tiny = filled(0.0);
  tiny.slice(1, 0, kSize, 7).fill_(std::ldexp(1.0, -136));  // the smallest of E4M3 under 2^-127
  const Operand large = mxfp8(filled(std::ldexp(1.0, 100)));
  expect_product(mxfp8(tiny), large, "alone");
  tiny[5].fill_(1.0);
  const at::Tensor found = product(mxfp8(tiny), large);
  EXPECT_EQ(found[0][0].item<double>(), 10 * std::ldexp(1.0, -36));
}

TEST(GemmOfBlocks, equals_bf16_gemm_if_all_products_are_normal) {
  const at::Tensor x = at::randn({kSize, kSize});
  if (!multiplies_in_bf16(mxfp8(x), mxfp8(x))) {
    GTEST_SKIP() << "the processor does not support BF16 products";
  }
  at::Tensor with_zeros = x.clone();
  with_zeros[3].zero_();  // the scale of a block of zeros is the smallest there is
  with_zeros.slice(1, 0, 32).zero_();
  EXPECT_TRUE(multiplies_in_bf16(mxfp8(with_zeros), mxfp8(with_zeros)));
  EXPECT_TRUE(multiplies_in_bf16(blocks_of_128(with_zeros), blocks_of_128(x)));
  EXPECT_TRUE(multiplies_in_bf16(mxfp8(filled(0.0)), mxfp8(filled(0.0))));
  at::Tensor one_is_tiny = x.clone();
  one_is_tiny[3].fill_(std::ldexp(1.0, -120));
  EXPECT_FALSE(multiplies_in_bf16(mxfp8(one_is_tiny), mxfp8(x)));
  EXPECT_EQ(ops::newest_gemm_choice().reason, "values or products below BF16's normal range");
  // 1 with the scale 2^-8 is a multiple of 2^-17. The products reach the limit 2^-126 if the
  // elements of the other operand are multiples of 2^-109.
  const auto power = [](int exponent) { return mxfp8(filled(std::ldexp(1.0, exponent))); };
  EXPECT_TRUE(multiplies_in_bf16(power(0), power(-92)));
  EXPECT_FALSE(multiplies_in_bf16(power(0), power(-93)));
}

}  // namespace
}  // namespace telens::testing
