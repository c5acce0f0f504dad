// The CPU's quantized GEMM with scales near the ends of FP32's range, against FP64.
#include <limits>

#include "core/ops/gemm.h"
#include "tests/core/gemm_scales.h"

namespace telens::testing {
namespace {

TEST(GemmScaleRange, product_in_fp32_range_is_right_for_extreme_scales) {
  at::manual_seed(31);
  expect_products_in_double([](const ScaledOperand& a, const ScaledOperand& b) {
    return ops::gemm(a.view(), b.view(), {}, at::kFloat);
  });
}

TEST(GemmScaleRange, a_product_that_is_added_is_right_too) {
  at::manual_seed(32);
  expect_products_in_double([](const ScaledOperand& a, const ScaledOperand& b) {
    const at::Tensor sum = at::zeros({a.codes.size(0), b.codes.size(0)});
    ops::gemm_accumulate(a.view(), b.view(), sum);
    return sum;
  });
}

TEST(GemmScaleRange, zeros_stay_zeros_under_scales_whose_product_overflows) {
  ScaledOperand a = operand_under(0x1p100, ScalingMode::tensor, FormatId::e4m3, 32, 64);
  const ScaledOperand b = operand_under(0x1p100, ScalingMode::tensor, FormatId::e4m3, 32, 64);
  a.codes.zero_();
  EXPECT_TRUE(at::equal(ops::gemm(a.view(), b.view(), {}, at::kFloat), at::zeros({32, 32})));
}

TEST(GemmScaleRange, infinite_and_nan_scales_reach_the_result) {
  const ScaledOperand a = operand_under(0x1p-100, ScalingMode::tensor, FormatId::e4m3, 32, 64);
  for (const double scale : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    const ScaledOperand b = operand_under(scale, ScalingMode::tensor, FormatId::e4m3, 32, 64);
    const at::Tensor out = ops::gemm(a.view(), b.view(), {}, at::kFloat);
    EXPECT_FALSE(out.isfinite().any().item<bool>()) << scale;
  }
}

TEST(GemmScaleRange, double_product_adds_bias_and_reports_the_choice) {
  const ScaledOperand a = operand_under(0x1p120, ScalingMode::block_1d, FormatId::e4m3, 32, 128);
  const ScaledOperand b = operand_under(0x1p-120, ScalingMode::block_1d, FormatId::e4m3, 16, 128);
  const at::Tensor bias = at::arange(16).to(at::kBFloat16);
  const at::Tensor sums = a.unscaled().mm(b.unscaled().t()) + bias.to(at::kDouble);
  const at::Tensor out = ops::gemm(a.view(), b.view(), bias, at::kBFloat16);
  EXPECT_TRUE(at::allclose(out.to(at::kDouble), sums, 0x1p-8, 1e-3));
  EXPECT_EQ(ops::newest_gemm_choice().kernel, "FP64 GEMM of decoded operands");
}

}  // namespace
}  // namespace telens::testing
