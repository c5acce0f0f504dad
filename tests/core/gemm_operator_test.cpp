// The GEMM of operands with one scale for each tensor, against FP64: output dtypes, bias, layouts,
// empty shapes, Meta kernel, and the arguments that the operator and run_gemm refuse.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "core/gemm/gemm.h"
#include "core/ops/gemm.h"
#include "core/ops/quantize.h"
#include "core/quantization/block_scaling.h"
#include "core/quantization/current_scaling.h"
#include "tests/core/double_reference.h"
#include "tests/core/modules/same_tensor.h"

namespace telens {
namespace {

using test::near;
using test::same_bits;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr auto kBf16Kernel = "BF16 GEMM of decoded operands";
constexpr auto kFp32Kernel = "FP32 GEMM of decoded operands";

at::Tensor one_float(double value) { return at::full({1}, value, at::kFloat); }

// Codes and the scale of one operand.
struct Codes {
  at::Tensor codes;
  at::Tensor scale_inv;
  FormatId format = FormatId::e4m3;
  at::Tensor tensor_scale = {};

  ops::GemmOperand view() const {
    return {codes, scale_inv, tensor_scale, format, ScalingMode::tensor};
  }
  at::Tensor values() const {
    return ops::decode_fp8(codes, format, at::kFloat).to(at::kDouble) * scale_inv.item<double>();
  }
};

Codes quantized(const at::Tensor& x, FormatId format, double scale_inv) {
  const at::Tensor scale = one_float(scale_inv).reciprocal();
  return {ops::quantize_fp8(x, scale, {}, format), one_float(scale_inv), format};
}

at::Tensor product(const Codes& a, const Codes& b, at::ScalarType dtype,
                   const at::Tensor& bias = {}) {
  return ops::gemm(a.view(), b.view(), bias, dtype);
}

std::string_view kernel() { return ops::newest_gemm_choice().kernel; }

double get_epsilon(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 0x1p-8;
  return dtype == at::kHalf ? 0x1p-11 : 0x1p-24;
}

// The error that adding a bias causes.
at::Tensor added(const at::Tensor& bias) {
  const bool rounded = bias.scalar_type() == at::kFloat;
  return (rounded ? bias.to(at::kBFloat16) : bias).to(at::kDouble);
}

// |difference| <= K x 2^-23 x sum |a||b| (FP32 accumulation) + the output's rounding on both sides.
void expect_within_bound(const at::Tensor& out, const Codes& a, const Codes& b,
                         const at::Tensor& bias) {
  at::Tensor exact = a.values().mm(b.values().t());
  at::Tensor magnitude = a.values().abs().mm(b.values().abs().t());
  if (bias.defined()) {
    exact = exact + added(bias);
    magnitude = magnitude + added(bias).abs();
  }
  const double accumulation = static_cast<double>(a.codes.size(1) + 1) * 0x1p-23;
  const at::Tensor bound =
      magnitude * accumulation + exact.abs() * (2 * get_epsilon(out.scalar_type()));
  const at::Tensor error = (out.to(at::kDouble) - exact).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>())
      << (error - bound).max().item<double>() << " over the bound";
}

struct Shape {
  std::int64_t m, n, k;
};
constexpr Shape kShapes[] = {{32, 48, 64}, {33, 65, 7}, {1, 1, 1}, {5, 64, 96}, {128, 80, 160}};

struct Formats {
  FormatId a, b;
};
constexpr Formats kFormats[] = {{FormatId::e4m3, FormatId::e4m3},
                                {FormatId::e5m2, FormatId::e4m3},
                                {FormatId::e4m3, FormatId::e5m2}};

class GemmTo : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(21); }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, GemmTo, ::testing::Values(at::kBFloat16, at::kHalf, at::kFloat),
                         [](const auto& dtype) { return c10::toString(dtype.param); });

TEST_P(GemmTo, error_is_within_the_bound_of_fp32_accumulation) {
  for (const Shape& shape : kShapes) {
    for (const Formats& formats : kFormats) {
      SCOPED_TRACE(::testing::Message() << shape.m << " x " << shape.n << " x " << shape.k);
      const Codes a = quantized(at::randn({shape.m, shape.k}), formats.a, 0.013);
      const Codes b = quantized(at::randn({shape.n, shape.k}), formats.b, 0.37);
      expect_within_bound(product(a, b, GetParam()), a, b, {});
      const at::Tensor bias = at::randn({shape.n}).to(GetParam());
      const at::Tensor out = product(a, b, GetParam(), bias);
      EXPECT_EQ(out.scalar_type(), GetParam());
      expect_within_bound(out, a, b, bias);
    }
  }
}

// Integers up to 16 have exact codes, and their sums of products are exact in FP32, so there is
// only one rounding.
TEST_P(GemmTo, rounds_an_exact_sum_with_its_bias_once) {
  const auto integers = [](std::int64_t rows) {
    return Codes{ops::quantize_fp8(at::randint(-16, 17, {rows, 128}).to(at::kFloat), one_float(1),
                                   {}, FormatId::e4m3),
                 one_float(1)};
  };
  const Codes a = integers(64), b = integers(48);
  const at::Tensor sums = a.values().mm(b.values().t());
  EXPECT_TRUE(same_bits(product(a, b, GetParam()), sums.to(GetParam())));
  const at::Tensor bias = (at::randint(-999, 1000, {48}).to(at::kDouble) * 0.25).to(GetParam());
  EXPECT_TRUE(same_bits(product(a, b, GetParam(), bias), (sums + added(bias)).to(GetParam())));
}

TEST_P(GemmTo, transposed_views_give_the_bits_of_dense_codes) {
  const Codes a = quantized(at::randn({48, 64}), FormatId::e5m2, 0.01);
  const Codes b = quantized(at::randn({32, 64}), FormatId::e4m3, 0.02);
  Codes a_view = a, b_view = b;
  a_view.codes = a.codes.t().contiguous().t();
  b_view.codes = b.codes.t().contiguous().t();
  const at::Tensor bias = at::randn({32}).to(GetParam());
  const at::Tensor dense = product(a, b, GetParam(), bias);
  EXPECT_TRUE(same_bits(product(a_view, b, GetParam(), bias), dense));
  EXPECT_TRUE(same_bits(product(a, b_view, GetParam(), bias), dense));
  EXPECT_TRUE(same_bits(product(a_view, b_view, GetParam(), bias), dense));
}

TEST_P(GemmTo, over_nothing_is_zero_or_the_bias) {
  const auto empty = [](std::int64_t rows, std::int64_t k) {
    return Codes{at::empty({rows, k}, at::kByte), one_float(1)};
  };
  const at::Tensor bias = at::arange(16).to(GetParam());
  EXPECT_TRUE(
      same_bits(product(empty(32, 0), empty(16, 0), GetParam()), at::zeros({32, 16}, GetParam())));
  EXPECT_TRUE(
      same_bits(product(empty(32, 0), empty(16, 0), GetParam(), bias), bias.expand({32, 16})));
  EXPECT_EQ(product(empty(0, 8), empty(16, 8), GetParam(), bias).sizes(), at::IntArrayRef({0, 16}));
  EXPECT_EQ(product(empty(4, 8), empty(0, 8), GetParam()).sizes(), at::IntArrayRef({4, 0}));
}

TEST_P(GemmTo, a_nan_code_makes_its_row_and_no_other_nan) {
  Codes a = quantized(at::ones({32, 32}), FormatId::e4m3, 1);
  const Codes b = quantized(at::ones({32, 32}), FormatId::e4m3, 1);
  a.codes[3][7] = 0x7f;
  const at::Tensor nan_rows = product(a, b, GetParam()).isnan().all(1);
  EXPECT_TRUE(nan_rows[3].item<bool>());
  EXPECT_EQ(nan_rows.sum().item<std::int64_t>(), 1);
  EXPECT_EQ(product(a, b, GetParam()).isnan().sum().item<std::int64_t>(), 32);
}

// The kernel for scales as GPUs support them. The other kernel is for 128-blocks whose scales are
// not powers of two.
TEST(GemmOperator, rounds_a_bias_of_fp32_to_bf16_and_leaves_others) {
  const double beyond_bf16 = 1 + 0x1p-10;
  const Codes zeros = quantized(at::zeros({16, 16}), FormatId::e4m3, 1);
  const auto with_bias = [&](at::ScalarType dtype) {
    return product(zeros, zeros, dtype, at::full({16}, beyond_bf16, dtype));
  };
  EXPECT_TRUE(same_bits(with_bias(at::kFloat), at::ones({16, 16})));
  EXPECT_TRUE(same_bits(with_bias(at::kHalf), at::full({16, 16}, beyond_bf16, at::kHalf)));
  const Float8BlockQuantizer quantizer(FormatId::e4m3, 1, {.power_of_2_scales = false});
  const QuantizedData blocks = quantizer.copy()->quantize(at::full({16, 256}, 0.3)).rowwise;
  const ops::GemmOperand operand{blocks.codes, blocks.scale_inv, blocks.tensor_scale,
                                 FormatId::e4m3, ScalingMode::block_1d};
  const at::Tensor sums = ops::gemm(operand, operand, {}, at::kFloat);
  EXPECT_TRUE(same_bits(
      ops::gemm(operand, operand, at::full({16}, beyond_bf16, at::kFloat), at::kFloat), sums + 1));
}

TEST(GemmChoice, reports_the_kernel_and_why_it_is_not_the_fastest) {
  at::manual_seed(22);
  const Codes a = quantized(at::randn({32, 64}), FormatId::e4m3, 0.01);
  const Codes b = quantized(at::randn({48, 64}), FormatId::e4m3, 0.01);
  product(a, b, at::kFloat);
  EXPECT_EQ(kernel(), kFp32Kernel);
  const std::string_view reason = ops::newest_gemm_choice().reason;
  const bool has_bf16 = reason != "the processor does not support BF16 products";
  if (has_bf16) {
    EXPECT_EQ(reason, "the output is not BF16");
  }
  product(a, b, at::kBFloat16);
  EXPECT_EQ(kernel(), has_bf16 ? kBf16Kernel : kFp32Kernel);
  EXPECT_EQ(ops::newest_gemm_choice().reason.empty(), has_bf16);
  const Codes small = quantized(at::randn({16, 16}), FormatId::e4m3, 0.01);
  product(small, small, at::kBFloat16);
  EXPECT_EQ(kernel(), kFp32Kernel);
}

// A processor without native BF16 runs the kernel that this one runs for an FP32 output.
TEST(GemmChoice, changes_nothing_beyond_the_order_of_the_sum) {
  at::manual_seed(23);
  const Codes a = quantized(at::randn({64, 256}), FormatId::e4m3, 0.01);
  const Codes b = quantized(at::randn({64, 256}), FormatId::e5m2, 0.01);
  const at::Tensor native = product(a, b, at::kBFloat16);
  const at::Tensor emulated = product(a, b, at::kFloat).to(at::kBFloat16);
  const at::Tensor magnitude = a.values().abs().mm(b.values().abs().t());
  const at::Tensor bound = magnitude * (2 * 256 * 0x1p-23) + emulated.abs() * 0x1p-7;
  EXPECT_TRUE(((native - emulated).abs() <= bound).all().item<bool>());
}

TEST(GemmOperator, on_meta_has_shape_and_dtype_and_refuses_the_same) {
  const auto meta = [](std::int64_t rows, std::int64_t k) {
    return Codes{at::empty({rows, k}, at::device(at::kMeta).dtype(at::kByte)),
                 at::empty({1}, at::device(at::kMeta).dtype(at::kFloat))};
  };
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor bias = at::empty({48}, at::device(at::kMeta).dtype(dtype));
    const at::Tensor out = product(meta(32, 64), meta(48, 64), dtype, bias);
    EXPECT_TRUE(out.is_meta());
    EXPECT_EQ(out.sizes(), at::IntArrayRef({32, 48}));
    EXPECT_EQ(out.scalar_type(), dtype);
  }
  EXPECT_THROW(product(meta(32, 64), meta(48, 32), at::kFloat), ShapeError);
}

TEST(GemmOperator, shape_errors_show_expected_and_given) {
  const Codes a = quantized(at::ones({32, 64}), FormatId::e4m3, 1);
  const Codes b = quantized(at::ones({16, 64}), FormatId::e4m3, 1);
  const auto call = [](Codes left, Codes right, at::ScalarType dtype, at::Tensor bias = {}) {
    return [=] { product(left, right, dtype, bias); };
  };
  const auto with_codes = [&](const at::Tensor& codes) {
    Codes other = b;
    other.codes = codes;
    return other;
  };
  EXPECT_THAT(call(a, with_codes(at::zeros({16, 32}, at::kByte)), at::kFloat),
              ThrowsMessage<ShapeError>(
                  HasSubstr("shapes [32, 64] and [16, 32]; expected [M, K] and [N, K]")));
  EXPECT_THAT(call(a, with_codes(at::zeros({16, 64}, at::kFloat)), at::kFloat),
              ThrowsMessage<ShapeError>(HasSubstr("dtypes Byte and Float; expected codes (Byte)")));
  EXPECT_THAT(
      call(a, b, at::kDouble),
      ThrowsMessage<ShapeError>(HasSubstr("out_dtype Double; expected BFloat16, Half or Float")));
  EXPECT_THAT(call(a, b, at::kFloat, at::zeros({32})),
              ThrowsMessage<ShapeError>(
                  HasSubstr("bias has shape [32] and dtype Float; expected [16] and Float")));
  EXPECT_THAT(call(a, b, at::kBFloat16, at::zeros({16})),
              ThrowsMessage<ShapeError>(HasSubstr("dtype Float; expected [16] and BFloat16")));
  Codes two_scales = b, not_fp8 = b;
  two_scales.scale_inv = at::ones({2});
  not_fp8.format = FormatId::e2m1;
  EXPECT_THAT(call(a, two_scales, at::kFloat), ThrowsMessage<ShapeError>(HasSubstr("scale_inv")));
  EXPECT_THROW(product(a, not_fp8, at::kFloat), UsageError);
}

class RunGemm : public ::testing::Test {
 protected:
  static Operand quantize(FormatId format, Usage usage = {}) {
    return CurrentScalingQuantizer(format, {}, usage).quantize(at::ones({32, 32}));
  }
  static auto running(Gemm gemm, const Operand& a, const Operand& b) {
    return [=] {
      static const std::string layer = "layers.0.fc1";
      run_gemm({gemm, a, b, at::Tensor(), at::kFloat, layer});
    };
  }
};

TEST_F(RunGemm, refuses_two_e5m2_operands_in_every_gemm_and_counts_none) {
  const Operand e5m2 = quantize(FormatId::e5m2), e4m3 = quantize(FormatId::e4m3);
  const GemmCounts before = gemm_counts();
  EXPECT_THAT(running(Gemm::fprop, e5m2, e5m2),
              ThrowsMessage<UsageError>(
                  HasSubstr("layers.0.fc1: fprop cannot multiply activation (E5M2, tensor scaling) "
                            "by weight (E5M2, tensor scaling); expected one scaling mode (or 1x128 "
                            "with 128x128 blocks), and at most one E5M2 operand")));
  EXPECT_THAT(running(Gemm::dgrad, e5m2, e5m2),
              ThrowsMessage<UsageError>(HasSubstr("dgrad cannot multiply gradient (E5M2")));
  EXPECT_THAT(running(Gemm::wgrad, e5m2, e5m2),
              ThrowsMessage<UsageError>(HasSubstr("by activation (E5M2")));
  EXPECT_EQ(gemm_counts().quantized, before.quantized);
  for (const Gemm gemm : kAllGemms) {
    EXPECT_NO_THROW(running(gemm, e5m2, e4m3)());
    EXPECT_NO_THROW(running(gemm, e4m3, e5m2)());
  }
  EXPECT_EQ(gemm_counts().quantized, before.quantized + 6);
}

TEST_F(RunGemm, refuses_operands_of_two_kinds_and_names_which_is_which) {
  const Operand codes = quantize(FormatId::e4m3), plain = at::ones({32, 32});
  EXPECT_THAT(running(Gemm::wgrad, codes, plain),
              ThrowsMessage<UsageError>(HasSubstr("layers.0.fc1: wgrad got gradient quantized and "
                                                  "activation in high precision")));
  EXPECT_THAT(running(Gemm::fprop, plain, codes),
              ThrowsMessage<UsageError>(HasSubstr("fprop got weight quantized and activation")));
}

TEST_F(RunGemm, refuses_an_orientation_that_was_dropped) {
  const Operand rowwise = quantize(FormatId::e4m3, {.rowwise = true, .columnwise = false});
  const Operand both = quantize(FormatId::e4m3);
  EXPECT_THAT(running(Gemm::dgrad, both, rowwise),
              ThrowsMessage<UsageError>(HasSubstr("layers.0.fc1: dgrad needs its weight")));
  EXPECT_THAT(running(Gemm::wgrad, rowwise, both),
              ThrowsMessage<UsageError>(HasSubstr("wgrad needs its gradient")));
}

// Each GEMM takes the orientations along which it sums: only these have matching sizes.
TEST_F(RunGemm, contracts_the_dimension_that_both_operands_share) {
  at::manual_seed(24);
  const at::Tensor x = at::randn({48, 32}), w = at::randn({16, 32}), g = at::randn({48, 16});
  const auto e4m3 = [](const at::Tensor& t) -> Operand {
    return CurrentScalingQuantizer(FormatId::e4m3).quantize(t);
  };
  const auto values = [](const Operand& operand) {
    return std::get<QuantizedTensor>(operand).dequantize().to(at::kDouble);
  };
  const Operand x8 = e4m3(x), w8 = e4m3(w), g8 = e4m3(g);
  const at::Tensor bias = at::randn({16}), none;
  const std::string layer = "fc";
  EXPECT_TRUE(near(run_gemm({Gemm::fprop, x8, w8, bias, at::kFloat, layer}).output,
                   values(x8).mm(values(w8).t()) + added(bias), 1e-5, 1e-5));
  EXPECT_TRUE(near(run_gemm({Gemm::dgrad, g8, w8, none, at::kFloat, layer}).output,
                   values(g8).mm(values(w8)), 1e-5, 1e-5));
  EXPECT_TRUE(near(run_gemm({Gemm::wgrad, g8, x8, none, at::kFloat, layer}).output,
                   values(g8).t().mm(values(x8)), 1e-5, 1e-5));
}

}  // namespace
}  // namespace telens
