#include "core/ops/normalization.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/modules/norm/norm.h"
#include "tests/core/double_reference.h"

namespace telens {
namespace {

using test::Leaf;
using test::near;

constexpr double kEps = 1e-5;

struct Case {
  Normalization normalization;
  bool bias;
  bool zero_centered_gamma;
};

const std::vector<Case> kCases{
    {Normalization::layer_norm, true, false},  {Normalization::layer_norm, true, true},
    {Normalization::layer_norm, false, false}, {Normalization::rms_norm, false, false},
    {Normalization::rms_norm, false, true},
};

// The definition, in double precision.
at::Tensor reference(const Case& of, const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& bias) {
  const at::Tensor centered =
      of.normalization == Normalization::layer_norm ? x - x.mean(-1, true) : x;
  const at::Tensor rstd = (centered.square().mean(-1, true) + kEps).rsqrt();
  const at::Tensor gamma = of.zero_centered_gamma ? 1 + weight : weight;
  const at::Tensor scaled = centered * rstd * gamma;
  return of.bias ? scaled + bias : scaled;
}

at::Tensor apply(const Case& of, const at::Tensor& x, const at::Tensor& weight,
                 const at::Tensor& bias) {
  return normalize(of.normalization, x, weight, of.bias ? bias : at::Tensor(),
                   {.eps = kEps, .zero_centered_gamma = of.zero_centered_gamma});
}

class Normalizing : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(7); }
};

TEST_F(Normalizing, equals_the_double_definition_for_every_row_length) {
  for (const Case& of : kCases) {
    for (const std::int64_t columns : {1, 3, 16, 17, 63, 64, 200, 1000}) {
      SCOPED_TRACE(columns);
      const Leaf x(at::randn({5, columns}) * 3 + 2);
      const Leaf weight(at::randn({columns})), bias(at::randn({columns}));
      const at::Tensor y = apply(of, x.tensor, weight.tensor, bias.tensor);
      EXPECT_TRUE(near(y, reference(of, x.reference, weight.reference, bias.reference), 1e-5,
                       columns == 1 ? 1e-4 : 1e-5));
    }
  }
}

// Squares of numbers from 2^64 on overflow in FP32, and those of small numbers become 0.
TEST_F(Normalizing, equals_the_definition_over_the_whole_range_of_fp32) {
  constexpr double kSmallest = 0x1p-149;
  for (const Case& of : kCases) {
    for (const double magnitude : {3e37, 1e20, 1e19, 1e10, 1e-19, 1e-30, 1e-44}) {
      SCOPED_TRACE(magnitude);
      const Leaf x((at::randn({5, 200}, at::kDouble) * magnitude).to(at::kFloat));
      const Leaf weight(at::randn({200})), bias(at::randn({200}));
      const at::Tensor y = apply(of, x.tensor, weight.tensor, bias.tensor);
      const at::Tensor expected = reference(of, x.reference, weight.reference, bias.reference);
      EXPECT_TRUE(near(y, expected, 1e-5, 1e-6));
      y.backward(at::ones_like(y));
      expected.backward(at::ones_like(expected));
      const double step = 3e-6 * x.reference.grad().abs().max().item<double>();
      EXPECT_TRUE(near(x.tensor.grad(), x.reference.grad(), 1e-4, step + 16 * kSmallest));
      EXPECT_TRUE(near(weight.tensor.grad(), weight.reference.grad(), 1e-4, 1e-5));
    }
  }
}

// Differences of numbers near the ends of the range overflow in FP32.
TEST_F(Normalizing, equals_definition_if_deviations_exceed_fp32) {
  constexpr double kSmallest = 0x1p-149;
  constexpr float kMax = std::numeric_limits<float>::max();
  // clang-format off
  const at::Tensor pattern = at::tensor({3e38F, -3e38F, -3e38F, -3e38F,
                                         kMax, kMax, kMax, -kMax,
                                         kMax, -kMax, 1.0F, 3e37F})
                                 .view({3, 4});
  // clang-format on
  for (const Case& of : kCases) {
    for (const int repetitions : {1, 50, 5000}) {  // with 5000 the sum has 20,000 squares
      SCOPED_TRACE(repetitions);
      const std::int64_t columns = 4 * repetitions;
      const Leaf x(pattern.repeat({1, repetitions}));
      const Leaf weight(at::randn({columns})), bias(at::randn({columns}));
      const at::Tensor y = apply(of, x.tensor, weight.tensor, bias.tensor);
      const at::Tensor expected = reference(of, x.reference, weight.reference, bias.reference);
      EXPECT_TRUE(near(y, expected, 1e-5, 1e-5));
      const at::Tensor grad = at::randn({3, columns});
      y.backward(grad);
      expected.backward(grad.to(at::kDouble));
      const double step = 1e-5 * x.reference.grad().abs().max().item<double>();
      EXPECT_TRUE(near(x.tensor.grad(), x.reference.grad(), 1e-4, step + 16 * kSmallest));
      EXPECT_TRUE(near(weight.tensor.grad(), weight.reference.grad(), 1e-4, 1e-4));
    }
  }
}

// The mean of equal numbers may be rounded up or down.
TEST_F(Normalizing, one_number_at_the_end_of_the_range_gives_finite_result) {
  constexpr float kMax = std::numeric_limits<float>::max();
  for (std::int64_t columns = 1; columns < 300; ++columns) {
    const at::Tensor x = at::full({1, columns}, kMax), weight = at::ones({columns});
    const auto [y, mean, rstd] = ops::layer_norm_forward(x, weight, std::nullopt, {.eps = kEps});
    EXPECT_NEAR(mean.item<float>(), kMax, 1e-6 * kMax) << columns;
    EXPECT_LE(y.abs().max().item<float>(), 1.001F) << columns;
    const auto gradients =
        ops::layer_norm_backward(weight.view_as(x), x, weight, mean, rstd, false);
    EXPECT_LE(gradients.dx.abs().max().item<float>(), 1e-30F) << columns;
  }
}

TEST_F(Normalizing, passes_infinities_and_nan_on_as_the_definition_does) {
  for (const Case& of : kCases) {
    for (const double special : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      at::Tensor x = at::randn({2, 40});
      x[0][3] = special;
      const at::Tensor weight = at::ones({40}), bias = at::zeros({40});
      const at::Tensor doubles = x.to(at::kDouble);
      EXPECT_TRUE(
          near(apply(of, x, weight, bias), reference(of, doubles, weight, bias), 1e-5, 1e-6));
    }
  }
}

TEST_F(Normalizing, differentiates_as_the_definition_in_double_precision) {
  for (const Case& of : kCases) {
    for (const std::int64_t rows : {1, 15, 300, 1500}) {
      SCOPED_TRACE(rows);
      const Leaf x(at::randn({rows, 37}) * 2 + 1), weight(at::randn({37})), bias(at::randn({37}));
      const at::Tensor grad = at::randn({rows, 37});
      apply(of, x.tensor, weight.tensor, bias.tensor).backward(grad);
      reference(of, x.reference, weight.reference, bias.reference).backward(grad.to(at::kDouble));
      EXPECT_TRUE(near(x.tensor.grad(), x.reference.grad(), 1e-4, 1e-5));
      EXPECT_TRUE(
          near(weight.tensor.grad(), weight.reference.grad(), 1e-4, 2e-5 * std::sqrt(rows)));
      if (of.bias) {
        EXPECT_TRUE(near(bias.tensor.grad(), bias.reference.grad(), 1e-4, 2e-5 * std::sqrt(rows)));
      }
    }
  }
}

TEST_F(Normalizing, gradients_match_finite_differences) {
  for (const Case& of : kCases) {
    const at::Tensor x = at::randn({4, 24}).set_requires_grad(true);
    const at::Tensor weight = at::randn({24}), bias = at::randn({24}), grad = at::randn({4, 24});
    apply(of, x, weight, bias).backward(grad);
    const at::Tensor direction = at::randn({4, 24});
    const double step = 1e-2;
    const at::NoGradGuard no_grad;
    const auto along = [&](double distance) {
      const at::Tensor y = apply(of, x + direction * distance, weight, bias);
      return (y.to(at::kDouble) * grad).sum().item<double>();
    };
    const double slope = (along(step) - along(-step)) / (2 * step);
    const double expected = (x.grad() * direction).sum().item<double>();
    EXPECT_NEAR(slope, expected, 2e-3 * (1 + std::abs(expected)));
  }
}

TEST_F(Normalizing, rounds_every_stored_value_once) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const Case& of : kCases) {
      const Leaf x(at::randn({40, 70}).to(dtype).to(at::kFloat));
      const at::Tensor weight = at::randn({70}), bias = at::randn({70});
      const at::Tensor grad = at::randn({40, 70}).to(dtype);
      const at::Tensor low = x.tensor.detach().to(dtype).set_requires_grad(true);
      const at::Tensor y = apply(of, x.tensor, weight, bias);
      const at::Tensor low_y = apply(of, low, weight, bias);
      EXPECT_EQ(low_y.scalar_type(), dtype);
      EXPECT_TRUE(at::equal(low_y, y.to(dtype)));
      y.backward(grad.to(at::kFloat));
      low_y.backward(grad);
      EXPECT_TRUE(at::equal(low.grad(), x.tensor.grad().to(dtype)));
    }
  }
}

TEST_F(Normalizing, rounds_a_parameters_gradient_once_to_the_parameters_dtype) {
  const at::Tensor x = at::randn({50, 32}), grad = at::randn({50, 32});
  const at::Tensor weight = at::randn({32}).to(at::kBFloat16);
  const auto [y, mean, rstd] = ops::layer_norm_forward(x, weight, std::nullopt, {});
  const auto low = ops::layer_norm_backward(grad, x, weight, mean, rstd, false);
  const auto high = ops::layer_norm_backward(grad, x, weight.to(at::kFloat), mean, rstd, false);
  EXPECT_EQ(low.dweight.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(low.dweight, high.dweight.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(low.dbias, high.dbias.to(at::kBFloat16)));
}

TEST_F(Normalizing, keeps_a_small_variance_around_a_large_mean) {
  const Leaf x(at::randn({3, 256}) * 0.01 + 100);
  const Leaf weight(at::ones({256})), bias(at::zeros({256}));
  EXPECT_TRUE(near(apply(kCases[0], x.tensor, weight.tensor, bias.tensor),
                   reference(kCases[0], x.reference, weight.reference, bias.reference), 0, 0.05));
}

TEST_F(Normalizing, gives_the_same_bits_with_any_number_of_threads) {
  const at::Tensor x = at::randn({1000, 130}), weight = at::randn({130}),
                   grad = at::randn({1000, 130});
  const auto run = [&](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const auto [y, mean, rstd] = ops::layer_norm_forward(x, weight, weight, {});
    const auto gradients = ops::layer_norm_backward(grad, x, weight, mean, rstd, false);
    at::set_num_threads(before);
    return std::vector{y, mean, rstd, gradients.dx, gradients.dweight, gradients.dbias};
  };
  const auto serial = run(1);
  for (const int threads : {2, 3, 7}) {
    const auto parallel = run(threads);
    for (std::size_t i = 0; i < serial.size(); ++i) {
      EXPECT_TRUE(at::equal(serial[i], parallel[i])) << "result " << i << ", threads " << threads;
    }
  }
}

TEST_F(Normalizing, takes_strides_and_several_dimensions) {
  const at::Tensor x = at::randn({6, 5, 4}).transpose(0, 2);  // [4, 5, 6]
  const at::Tensor weight = at::randn({6, 5}).t();            // [5, 6]
  const auto strided = ops::layer_norm_forward(x, weight, std::nullopt, {});
  const auto packed =
      ops::layer_norm_forward(x.contiguous(), weight.contiguous(), std::nullopt, {});
  EXPECT_TRUE(at::equal(strided.y, packed.y));
  EXPECT_EQ(strided.y.sizes(), x.sizes());
  EXPECT_EQ(strided.mean.numel(), 4);
  EXPECT_TRUE(near(strided.y, at::layer_norm(x, {5, 6}, weight, {}, kEps), 1e-5, 1e-5));
}

TEST_F(Normalizing, gives_zero_gradients_for_no_rows) {
  const Leaf x(at::randn({0, 8})), weight(at::randn({8})), bias(at::randn({8}));
  apply(kCases[0], x.tensor, weight.tensor, bias.tensor).sum().backward();
  EXPECT_TRUE(at::equal(weight.tensor.grad(), at::zeros({8})));
  EXPECT_TRUE(at::equal(bias.tensor.grad(), at::zeros({8})));
  EXPECT_EQ(x.tensor.grad().sizes(), at::IntArrayRef({0, 8}));
}

TEST_F(Normalizing, nan_affects_only_its_row) {
  const at::Tensor x = at::randn({3, 20});
  x[1][4] = std::nanf("");
  const at::Tensor y = ops::rms_norm_forward(x, at::ones({20}), {}).y;
  EXPECT_TRUE(y[1].isnan().all().item<bool>());
  EXPECT_FALSE(y[0].isnan().any().item<bool>());
  EXPECT_FALSE(y[2].isnan().any().item<bool>());
}

TEST_F(Normalizing, knows_its_shapes_on_the_meta_device) {
  const auto meta = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor x = at::empty({4, 5, 6}, meta), weight = at::empty({6}, meta);
  const auto [y, mean, rstd] = ops::layer_norm_forward(x, weight, weight, {});
  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_EQ(mean.sizes(), at::IntArrayRef({20}));
  EXPECT_EQ(rstd.scalar_type(), at::kFloat);
  EXPECT_EQ(ops::layer_norm_backward(y, x, weight, mean, rstd, false).dweight.sizes(),
            weight.sizes());
}

TEST_F(Normalizing, refuses_shapes_and_dtypes_by_name) {
  const at::Tensor x = at::randn({4, 6});
  EXPECT_THROW(ops::layer_norm_forward(x, at::ones({5}), std::nullopt, {}), ShapeError);
  EXPECT_THROW(ops::layer_norm_forward(x, at::ones({6}), at::ones({5}), {}), ShapeError);
  EXPECT_THROW(ops::rms_norm_forward(x.to(at::kInt), at::ones({6}), {}), ShapeError);
  EXPECT_THROW(ops::rms_norm_forward(at::randn({4, 0}), at::ones({0}), {}), ShapeError);
  const at::Tensor rstd = at::ones({4});
  EXPECT_THROW(ops::rms_norm_backward(at::randn({4, 5}), x, at::ones({6}), rstd, false),
               ShapeError);
  EXPECT_THROW(ops::rms_norm_backward(x, x, at::ones({6}), at::ones({3}), false), ShapeError);
  EXPECT_THROW(normalization_from_name("BatchNorm"), UsageError);
}

}  // namespace
}  // namespace telens
