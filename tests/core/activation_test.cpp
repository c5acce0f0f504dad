#include "core/ops/activation.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "core/modules/fused/mlp_activation.h"
#include "tests/core/double_reference.h"

namespace telens {
namespace {

using test::Leaf;
using test::near;
using Function = std::function<at::Tensor(const at::Tensor&)>;

// torch's own functions, in double precision.
const std::map<ops::ActivationFunction, Function> kFunctions{
    {ops::ActivationFunction::gelu, [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
    {ops::ActivationFunction::qgelu, [](const at::Tensor& x) { return x * (1.702 * x).sigmoid(); }},
    {ops::ActivationFunction::relu, [](const at::Tensor& x) { return at::relu(x); }},
    {ops::ActivationFunction::srelu, [](const at::Tensor& x) { return at::relu(x).square(); }},
    {ops::ActivationFunction::silu, [](const at::Tensor& x) { return at::silu(x); }},
};

at::Tensor reference(const ops::Activation& activation, const at::Tensor& x) {
  const Function& function = kFunctions.at(activation.function);
  if (!activation.gated) return function(x);
  const auto halves = x.chunk(2, -1);
  return function(halves[0]) * halves[1];
}

class Activating : public testing::TestWithParam<ops::Activation> {
 protected:
  void SetUp() override { at::manual_seed(3); }
};

TEST_P(Activating, equals_torch_in_double_precision) {
  for (const std::int64_t columns : {2, 6, 32, 50, 130, 1000}) {
    const Leaf x(at::randn({3, columns}) * 4);
    EXPECT_TRUE(
        near(activate(GetParam(), x.tensor), reference(GetParam(), x.reference), 3e-6, 1e-6));
  }
}

TEST_P(Activating, differentiates_as_torch_in_double_precision) {
  const Leaf x(at::randn({5, 98}) * 3);
  const at::Tensor y = activate(GetParam(), x.tensor);
  const at::Tensor grad = at::randn(y.sizes());
  y.backward(grad);
  reference(GetParam(), x.reference).backward(grad.to(at::kDouble));
  EXPECT_TRUE(near(x.tensor.grad(), x.reference.grad(), 1e-5, 3e-6));
}

TEST_P(Activating, gradients_match_finite_differences) {
  const at::Tensor x = (at::randn({4, 16}) * 2).set_requires_grad(true);
  const at::Tensor y = activate(GetParam(), x);
  const at::Tensor grad = at::randn(y.sizes()), direction = at::randn(x.sizes());
  y.backward(grad);
  const at::NoGradGuard no_grad;
  const double step = 1e-3;
  const auto along = [&](double distance) {
    const at::Tensor moved = activate(GetParam(), x + direction * distance);
    return (moved.to(at::kDouble) * grad).sum().item<double>();
  };
  const double slope = (along(step) - along(-step)) / (2 * step);
  const double expected = (x.grad() * direction).sum().item<double>();
  EXPECT_NEAR(slope, expected, 5e-3 * (1 + std::abs(expected)));
}

TEST_P(Activating, rounds_every_stored_value_once) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor low = (at::randn({7, 66}) * 3).to(dtype);
    const at::Tensor high = low.to(at::kFloat);
    const at::Tensor y = ops::activation_forward(high, GetParam());
    EXPECT_TRUE(at::equal(ops::activation_forward(low, GetParam()), y.to(dtype)));
    const at::Tensor grad = at::randn(y.sizes()).to(dtype);
    EXPECT_TRUE(
        at::equal(ops::activation_backward(grad, low, GetParam()),
                  ops::activation_backward(grad.to(at::kFloat), high, GetParam()).to(dtype)));
  }
}

TEST_P(Activating, passes_nan_on_and_stays_finite_far_out) {
  const at::Tensor x = at::full({2, 40}, 1.0F);
  x[0].fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(ops::activation_forward(x, GetParam())[0].isnan().all().item<bool>());

  for (const double magnitude : {90.0, 200.0, 1e10, 1e12}) {
    const at::Tensor far = at::full({1, 40}, magnitude);
    far.slice(1, 0, 40, 2).neg_();
    const at::Tensor y = ops::activation_forward(far, GetParam());
    const at::Tensor dx = ops::activation_backward(at::ones(y.sizes()), far, GetParam());
    EXPECT_TRUE(y.isfinite().all().item<bool>()) << magnitude;
    EXPECT_TRUE(dx.isfinite().all().item<bool>()) << magnitude;
    EXPECT_TRUE(near(y, reference(GetParam(), far.to(at::kDouble)), 1e-6, 1e-30)) << magnitude;
  }
}

TEST_P(Activating, takes_strides_and_empty_tensors) {
  const at::Tensor x = at::randn({12, 7}).t();
  EXPECT_TRUE(at::equal(ops::activation_forward(x, GetParam()),
                        ops::activation_forward(x.contiguous(), GetParam())));
  for (const auto& sizes : {std::vector<std::int64_t>{0, 12}, {3, 0}}) {
    const at::Tensor empty = at::empty(sizes);
    EXPECT_EQ(ops::activation_forward(empty, GetParam()).numel(), 0);
    EXPECT_EQ(
        ops::activation_backward(ops::activation_forward(empty, GetParam()), empty, GetParam())
            .sizes(),
        empty.sizes());
  }
}

TEST_P(Activating, gives_the_same_bits_with_any_number_of_threads) {
  const at::Tensor x = at::randn({333, 202});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor serial = ops::activation_forward(x, GetParam());
  at::set_num_threads(3);
  const at::Tensor parallel = ops::activation_forward(x, GetParam());
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(serial, parallel));
}

TEST_P(Activating, knows_its_shape_on_the_meta_device) {
  const at::Tensor x = at::randn({3, 8});
  const at::Tensor meta = ops::activation_forward(x.to(at::kMeta), GetParam());
  EXPECT_EQ(meta.sizes(), ops::activation_forward(x, GetParam()).sizes());
}

TEST(Activation, has_a_finite_slope_if_the_square_of_x_overflows) {
  const at::Tensor x = at::tensor({1e25F, -1e25F});
  const ops::Activation& gelu = ops::activation_from_name("gelu");
  const at::Tensor dx = ops::activation_backward(at::ones({2}), x, gelu);
  EXPECT_TRUE(at::equal(dx, at::tensor({1.0F, 0.0F}))) << dx;
}

INSTANTIATE_TEST_SUITE_P(every_activation, Activating, testing::ValuesIn(ops::kActivations),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Activation, rejects_invalid_arguments) {
  const ops::Activation& swiglu = ops::activation_from_name("swiglu");
  EXPECT_THROW(ops::activation_forward(at::randn({3, 5}), swiglu), ShapeError);
  EXPECT_THROW(ops::activation_forward(at::randn({3, 4}).to(at::kDouble), swiglu), ShapeError);
  EXPECT_THROW(ops::activation_backward(at::randn({3, 4}), at::randn({3, 4}), swiglu), ShapeError);
}

TEST(Activation, unknown_name_error_lists_known_names) {
  try {
    ops::activation_from_name("gello");
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("swiglu"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace telens
