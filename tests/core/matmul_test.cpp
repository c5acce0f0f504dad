// Products of plain operands against LibTorch's and FP64, and products that are added to an
// existing tensor: telens::matmul, telens::matmul_accumulate, telens::gemm_accumulate, and run_gemm
// with them.
#include "core/ops/matmul.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "core/gemm/gemm.h"
#include "core/ops/device.h"
#include "core/ops/gemm.h"
#include "core/quantization/block_scaling.h"
#include "core/quantization/current_scaling.h"
#include "tests/core/modules/same_tensor.h"

namespace telens {
namespace {

using test::same_bits;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr at::ScalarType kDtypes[] = {at::kBFloat16, at::kHalf, at::kFloat};

struct Shape {
  std::int64_t m, n, k;
};
constexpr Shape kShapes[] = {{32, 48, 64}, {33, 65, 7}, {1, 1, 1}, {128, 80, 160}};

// Small integers: their products and sums are exact in FP32.
at::Tensor integers(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randint(-8, 9, sizes).to(dtype);
}

// [rows, columns] in column-major order.
at::Tensor column_major(const at::Tensor& matrix) { return matrix.t().contiguous().t(); }

at::Tensor in_double(const at::Tensor& a, const at::Tensor& b) {
  return a.to(at::kDouble).mm(b.to(at::kDouble).t());
}

// The bound for FP32 accumulation over K and for the addition.
void expect_within_bound(const at::Tensor& out, const at::Tensor& before, const at::Tensor& a,
                         const at::Tensor& b) {
  const at::Tensor exact = in_double(a, b) + before.to(at::kDouble);
  const at::Tensor magnitude = in_double(a.abs(), b.abs()) + before.to(at::kDouble).abs();
  const at::Tensor bound = magnitude * (static_cast<double>(a.size(1) + 1) * 0x1p-23);
  EXPECT_TRUE(((out.to(at::kDouble) - exact).abs() <= bound).all().item<bool>());
}

TEST(Matmul, grouped_products_equal_separate_products) {
  at::manual_seed(30);
  const std::vector<std::int64_t> rows{33, 0, 31};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
    const at::Tensor a = at::randn({64, 48}).to(dtype);
    std::vector<at::Tensor> b, bias;
    for (int part = 0; part < 3; ++part) {
      b.push_back(part == 2 ? column_major(at::randn({16, 48}).to(dtype))
                            : at::randn({16, 48}).to(dtype));
      bias.push_back(at::randn({16}).to(dtype));
    }
    for (const bool adds : {false, true}) {
      const at::Tensor out = at::full({64, 16}, 7, a.options());
      ops::grouped_matmul(a, b, adds ? at::TensorList(bias) : at::TensorList(), rows, out);
      for (const auto& [part, first, count] : {std::tuple(0, 0, 33), std::tuple(2, 33, 31)}) {
        EXPECT_TRUE(same_bits(out.narrow(0, first, count),
                              ops::matmul(a.narrow(0, first, count), b[part],
                                          adds ? bias[part] : at::Tensor(), dtype)));
      }
    }
  }
}

TEST(Matmul, parts_that_do_not_fit_are_errors) {
  const at::Tensor a = at::zeros({4, 8}), b = at::zeros({2, 8}), out = at::zeros({4, 2});
  EXPECT_THAT(
      [&] {
        ops::grouped_matmul(a, {b, b}, {}, {4}, out);
      },
      ThrowsMessage<ShapeError>(HasSubstr("2 operands, 0 biases and 1 numbers of rows")));
  EXPECT_THAT(
      [&] {
        ops::grouped_matmul(a, {b, b}, {}, {5, -1}, out);
      },
      ThrowsMessage<ShapeError>(HasSubstr("expected the 4 of a, none below 0")));
  EXPECT_THAT(
      [&] {
        ops::grouped_matmul(a, {b, b}, {}, {1, 3}, at::zeros({2, 4}).t());
      },
      ThrowsMessage<ShapeError>(HasSubstr("expected contiguous [4, 2]")));
}

// LibTorch's product a b^T, plus a bias if it is defined. It is computed in FP32 and rounded once
// where this processor runs BF16 products in FP32.
at::Tensor product_of_torch(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  const bool is_widened = ops::multiplies_in_fp32(a);
  const auto widened = [&](const at::Tensor& x) { return is_widened ? x.to(at::kFloat) : x; };
  const at::Tensor product = bias.defined() ? at::addmm(widened(bias), widened(a), widened(b).t())
                                            : at::mm(widened(a), widened(b).t());
  return product.to(a.scalar_type());
}

TEST(Matmul, matches_torch_bits_for_every_dtype_shape_and_stride) {
  at::manual_seed(31);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(::testing::Message() << dtype << ' ' << shape.m << " x " << shape.n);
      const at::Tensor a = at::randn({shape.m, shape.k}).to(dtype);
      const at::Tensor b = at::randn({shape.n, shape.k}).to(dtype);
      const at::Tensor bias = at::randn({shape.n}).to(dtype);
      for (const at::Tensor& left : {a, column_major(a)}) {
        for (const at::Tensor& right : {b, column_major(b)}) {
          EXPECT_TRUE(
              same_bits(ops::matmul(left, right, {}, dtype), product_of_torch(left, right, {})));
          EXPECT_TRUE(same_bits(ops::matmul(left, right, bias, dtype),
                                product_of_torch(left, right, bias)));
        }
      }
    }
  }
}

TEST(Matmul, fp32_output_of_16_bit_operands_is_not_rounded) {
  at::manual_seed(32);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor a = at::randn({40, 96}).to(dtype), b = at::randn({24, 96}).to(dtype);
    const at::Tensor out = ops::matmul(a, b, {}, at::kFloat);
    EXPECT_EQ(out.scalar_type(), at::kFloat);
    expect_within_bound(out, at::zeros({1}), a, b);
    const at::Tensor bias = at::full({24}, 1 + 0x1p-20);
    EXPECT_TRUE(
        same_bits(ops::matmul(at::zeros_like(a), b, bias, at::kFloat), bias.expand({40, 24})));
  }
}

TEST(Matmul, over_nothing_is_zero_or_the_bias) {
  for (const at::ScalarType dtype : kDtypes) {
    const auto empty = [&](std::int64_t rows, std::int64_t k) {
      return at::empty({rows, k}, dtype);
    };
    const at::Tensor bias = at::arange(16).to(dtype);
    EXPECT_TRUE(
        same_bits(ops::matmul(empty(32, 0), empty(16, 0), {}, dtype), at::zeros({32, 16}, dtype)));
    EXPECT_TRUE(
        same_bits(ops::matmul(empty(32, 0), empty(16, 0), bias, dtype), bias.expand({32, 16})));
    EXPECT_EQ(ops::matmul(empty(0, 8), empty(16, 8), bias, dtype).sizes(),
              at::IntArrayRef({0, 16}));
  }
}

TEST(MatmulAccumulate, exact_sums_are_exact_for_every_dtype_shape_and_stride) {
  at::manual_seed(33);
  for (const at::ScalarType dtype : kDtypes) {
    for (const Shape& shape : kShapes) {
      const at::Tensor a = integers({shape.m, shape.k}, dtype);
      const at::Tensor b = integers({shape.n, shape.k}, dtype);
      const at::Tensor before = integers({shape.m, shape.n}, at::kFloat) + 0.5;
      const at::Tensor expected = (in_double(a, b) + before).to(at::kFloat);
      for (const at::Tensor& left : {a, column_major(a)}) {
        const at::Tensor out = before.clone(), transposed = column_major(before).clone();
        ops::matmul_accumulate(left, column_major(b), out);
        EXPECT_TRUE(same_bits(out, expected));
        ops::matmul_accumulate(left, b, transposed);
        EXPECT_TRUE(same_bits(transposed, expected));
      }
    }
  }
}

TEST(MatmulAccumulate, is_within_the_bound_of_fp32_accumulation) {
  at::manual_seed(34);
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor a = at::randn({48, 200}).to(dtype), b = at::randn({56, 200}).to(dtype);
    const at::Tensor before = at::randn({48, 56}) * 100;
    const at::Tensor out = before.clone();
    ops::matmul_accumulate(a, b, out);
    expect_within_bound(out, before, a, b);
  }
}

TEST(MatmulAccumulate, keeps_nan_and_infinity_and_an_empty_sum_adds_nothing) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  at::Tensor a = at::ones({4, 8}), out = at::ones({4, 6});
  a[1][2] = std::nan("");
  a[2][3] = kInfinity;
  out[3][4] = std::nan("");
  out[3][5] = -kInfinity;
  ops::matmul_accumulate(a, at::ones({6, 8}), out);
  EXPECT_TRUE(out[0].eq(9).all().item<bool>());
  EXPECT_TRUE(out[1].isnan().all().item<bool>());
  EXPECT_TRUE(out[2].eq(kInfinity).all().item<bool>());
  EXPECT_TRUE(out[3].slice(0, 0, 4).eq(9).all().item<bool>());
  EXPECT_TRUE(out[3][4].isnan().item<bool>());
  EXPECT_EQ(out[3][5].item<float>(), -kInfinity);

  const at::Tensor untouched = out.clone();
  ops::matmul_accumulate(at::empty({4, 0}), at::empty({6, 0}), out);
  EXPECT_TRUE(same_bits(out, untouched));
  ops::matmul_accumulate(at::empty({0, 8}), at::ones({6, 8}), at::empty({0, 6}));
}

TEST(Matmul, on_meta_has_shape_and_dtype_and_refuses_the_same) {
  const auto meta = [](at::IntArrayRef sizes, at::ScalarType dtype = at::kHalf) {
    return at::empty(sizes, at::device(at::kMeta).dtype(dtype));
  };
  const at::Tensor out = ops::matmul(meta({32, 64}), meta({48, 64}), {}, at::kFloat);
  EXPECT_TRUE(out.is_meta());
  EXPECT_EQ(out.sizes(), at::IntArrayRef({32, 48}));
  EXPECT_EQ(out.scalar_type(), at::kFloat);
  EXPECT_THROW(ops::matmul(meta({32, 64}), meta({48, 32}), {}, at::kHalf), ShapeError);
  EXPECT_NO_THROW(ops::matmul_accumulate(meta({32, 64}), meta({48, 64}), out));
  EXPECT_THROW(ops::matmul_accumulate(meta({32, 64}), meta({32, 64}), out), ShapeError);
}

TEST(Matmul, shape_errors_show_expected_and_given) {
  const at::Tensor a = at::ones({32, 64}), b = at::ones({16, 64});
  const auto call = [](at::Tensor left, at::Tensor right, at::ScalarType dtype,
                       at::Tensor bias = {}) {
    return [=] { ops::matmul(left, right, bias, dtype); };
  };
  const auto refused = [](const char* why) { return ThrowsMessage<ShapeError>(HasSubstr(why)); };
  EXPECT_THAT(call(a, at::ones({16, 32}), at::kFloat),
              refused("matmul: operands have shapes [32, 64] and [16, 32]; expected [M, K] and"));
  EXPECT_THAT(call(a, b.to(at::kHalf), at::kFloat),
              refused("dtypes Float and Half; expected one; convert one of them"));
  EXPECT_THAT(call(a.to(at::kLong), b.to(at::kLong), at::kFloat),
              refused("operand has dtype Long"));
  EXPECT_THAT(call(a, b, at::kHalf), refused("out_dtype is Half for operands of Float; expected"));
  EXPECT_THAT(call(a, b, at::kFloat, at::ones({32})),
              refused("bias has shape [32] and dtype Float; expected [16] and Float"));
  const auto accumulate = [](at::Tensor left, at::Tensor right, at::Tensor out) {
    return [=] { ops::matmul_accumulate(left, right, out); };
  };
  EXPECT_THAT(
      accumulate(a, b, at::ones({16, 32})),
      refused("matmul_accumulate: out has shape [16, 32] and dtype Float; expected [32, 16]"));
  EXPECT_THAT(accumulate(a, b, at::ones({32, 16}, at::kHalf)), refused("dtype Half; expected"));
  EXPECT_THAT(accumulate(a.to(at::kDouble), b.to(at::kDouble), at::ones({32, 16})),
              refused("operand has dtype Double"));
  EXPECT_THAT(accumulate(a, b, at::ones({32, 16}, at::device(at::kMeta))),
              refused("out is on meta and the operands on cpu"));
}

// ---- run_gemm: of plain operands, and of those of every way of scaling

struct Case {
  const char* name;
  std::shared_ptr<Quantizer> quantizer;  // nullptr: plain operands
  at::ScalarType dtype;                  // dtype before quantization, or of plain operands
};

std::vector<Case> all_cases() {
  const auto blocks = [](std::int64_t dim, bool power_of_2) {
    return std::make_shared<Float8BlockQuantizer>(FormatId::e4m3, dim,
                                                  BlockOptions{.power_of_2_scales = power_of_2});
  };
  return {
      {"plain BF16", nullptr, at::kBFloat16},
      {"plain FP16", nullptr, at::kHalf},
      {"plain FP32", nullptr, at::kFloat},
      {"a scale a tensor", std::make_shared<CurrentScalingQuantizer>(FormatId::e4m3), at::kFloat},
      {"MXFP8", std::make_shared<MXFP8Quantizer>(FormatId::e4m3), at::kFloat},
      {"128-blocks", blocks(1, true), at::kFloat},
      {"128-blocks, any scales", blocks(1, false), at::kFloat},
      {"NVFP4", std::make_shared<NVFP4Quantizer>(), at::kFloat}};
}

Operand get_operand(const Case& how, const at::Tensor& x) {
  if (!how.quantizer) return x.to(how.dtype);
  return how.quantizer->copy()->quantize(x.to(how.dtype));
}

at::Tensor run(Gemm gemm, const Operand& a, const Operand& b, const Case& how,
               const at::Tensor& into = {}) {
  static const std::string layer = "layers.0.fc1";
  const at::ScalarType out = into.defined() ? how.dtype : at::kFloat;
  return run_gemm({.gemm = gemm,
                   .a = a,
                   .b = b,
                   .bias = {},
                   .out_dtype = out,
                   .layer = layer,
                   .accumulate_into = into,
                   .operand_dtype = how.dtype})
      .output;
}

// Compares with the FP32 product and one addition. The bound allows that the sum takes the terms in
// another order.
void expect_sum(const at::Tensor& sum, const at::Tensor& before, const at::Tensor& product,
                const at::Tensor& magnitude, std::int64_t k) {
  const at::Tensor bound =
      (magnitude + before.abs()).to(at::kDouble) * (static_cast<double>(2 * k + 2) * 0x1p-23);
  const at::Tensor exact = before.to(at::kDouble) + product.to(at::kDouble);
  EXPECT_TRUE(((sum.to(at::kDouble) - exact).abs() <= bound).all().item<bool>());
}

TEST(RunGemmInto, adds_the_product_for_every_scaling_mode) {
  at::manual_seed(35);
  constexpr std::int64_t kTokens = 256, kIn = 128, kOut = 384;
  const at::Tensor x = at::randn({kTokens, kIn}), w = at::randn({kOut, kIn});
  const at::Tensor g = at::randn({kTokens, kOut});
  for (const Case& how : all_cases()) {
    const Operand x8 = get_operand(how, x), w8 = get_operand(how, w), g8 = get_operand(how, g);
    for (const auto& [gemm, a, b, k] : {std::tuple{Gemm::fprop, &x8, &w8, kIn},
                                        {Gemm::dgrad, &g8, &w8, kOut},
                                        {Gemm::wgrad, &g8, &x8, kTokens}}) {
      SCOPED_TRACE(::testing::Message() << how.name << ' ' << get_name(gemm));
      const GemmCounts counts = gemm_counts();
      const at::Tensor product = run(gemm, *a, *b, how);
      EXPECT_EQ(product.scalar_type(), at::kFloat);
      const at::Tensor before = at::randn(product.sizes()) * 64, sum = before.clone();
      EXPECT_TRUE(run(gemm, *a, *b, how, sum).is_same(sum));
      // No element of these data is larger than 6.
      expect_sum(sum, before, product, at::full({1}, 36.0 * static_cast<double>(k)), k);
      EXPECT_EQ(gemm_counts().quantized + gemm_counts().high_precision,
                counts.quantized + counts.high_precision + 2);
    }
  }
}

// All elements have one magnitude that every format represents exactly: with power-of-two scales
// 448 x 2^-6 is E4M3's largest value, and NVFP4's largest block has the scale 1, under which 6 is
// E2M1's largest.
TEST(RunGemmInto, exact_sums_are_exact_for_every_scaling_mode) {
  at::manual_seed(36);
  for (const Case& how : all_cases()) {
    SCOPED_TRACE(how.name);
    const bool four_bits = std::string_view(how.name) == "NVFP4";
    const double magnitude = four_bits ? 6.0 * 448 * 0x1p-9 : 448 * 0x1p-6;
    const at::Tensor x = integers({128, 128}, at::kFloat).sign() * magnitude;
    const at::Tensor g = integers({128, 256}, at::kFloat).sign() * magnitude;
    const Operand x8 = get_operand(how, x), g8 = get_operand(how, g);
    const at::Tensor before = integers({256, 128}, at::kFloat), sum = before.clone();
    run(Gemm::wgrad, g8, x8, how, sum);
    run(Gemm::wgrad, g8, x8, how, sum);
    const at::Tensor product = in_double(g.t(), x.t());
    EXPECT_TRUE(same_bits(run(Gemm::wgrad, g8, x8, how), product.to(at::kFloat)));
    EXPECT_TRUE(same_bits(sum, (before + product * 2).to(at::kFloat)));
  }
}

TEST(RunGemmInto, no_tokens_leave_the_output_unchanged) {
  for (const Case& how : all_cases()) {
    SCOPED_TRACE(how.name);
    const Operand x8 = get_operand(how, at::empty({0, 128}));
    const Operand g8 = get_operand(how, at::empty({0, 256}));
    at::Tensor sum = at::full({256, 128}, -0.0);
    sum[0][0] = std::nan("");
    const at::Tensor before = sum.clone();
    const GemmCounts counts = gemm_counts();
    run(Gemm::wgrad, g8, x8, how, sum);
    EXPECT_TRUE(same_bits(sum, before));
    EXPECT_EQ(gemm_counts().quantized, counts.quantized);
    EXPECT_EQ(gemm_counts().high_precision, counts.high_precision);
  }
}

TEST(RunGemmInto, rounds_plain_operands_to_the_layer_dtype_before_fp32) {
  const Case bf16{"plain BF16", nullptr, at::kBFloat16};
  const Operand beyond = at::full({16, 16}, 1 + 0x1p-12), ones = at::ones({16, 16});
  const at::Tensor sum = at::zeros({16, 16});
  run(Gemm::wgrad, beyond, ones, bf16, sum);
  EXPECT_TRUE(same_bits(sum, at::full({16, 16}, 16.0F)));
  EXPECT_TRUE(same_bits(run(Gemm::wgrad, beyond, ones, bf16), sum));
}

TEST(GemmAccumulate, rejects_wrong_shapes_and_has_a_meta_kernel) {
  const Case current{"", std::make_shared<CurrentScalingQuantizer>(FormatId::e4m3), at::kFloat};
  const auto codes = std::get<QuantizedTensor>(get_operand(current, at::ones({32, 64})));
  const ops::GemmOperand a{codes.rowwise.codes, codes.rowwise.scale_inv, codes.rowwise.tensor_scale,
                           codes.format, codes.mode};
  EXPECT_THAT(
      [&] {
        ops::gemm_accumulate(a, a, at::ones({32, 64}));
      },
      ThrowsMessage<ShapeError>(
          HasSubstr("gemm_accumulate: out has shape [32, 64] and dtype Float; expected [32, 32]")));
  EXPECT_THAT(
      [&] {
        ops::gemm_accumulate(a, a, at::ones({32, 32}, at::kBFloat16));
      },
      ThrowsMessage<ShapeError>(HasSubstr("dtype BFloat16; expected [32, 32] and Float")));
  const at::Tensor meta_codes = a.codes.to(at::kMeta), meta_scale = a.scale_inv.to(at::kMeta);
  const ops::GemmOperand on_meta{meta_codes, meta_scale, a.tensor_scale, codes.format, codes.mode};
  EXPECT_NO_THROW(ops::gemm_accumulate(on_meta, on_meta, at::ones({32, 32}).to(at::kMeta)));
  EXPECT_THROW(ops::gemm_accumulate(on_meta, on_meta, at::ones({2, 2}).to(at::kMeta)), ShapeError);
}

}  // namespace
}  // namespace telens
