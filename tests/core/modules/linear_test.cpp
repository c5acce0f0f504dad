// Linear with and without FP8: values, gradients, shapes, errors.
#include "core/modules/linear/linear.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "core/gemm/gemm.h"
#include "core/modules/module/module.h"
#include "core/ops/device.h"
#include "core/quantization/autocast.h"
#include "core/quantization/current_scaling.h"
#include "tests/core/modules/same_tensor.h"

namespace telens {
namespace {

using test::same_bits;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

LinearOptions get_options(std::int64_t in, std::int64_t out, at::ScalarType dtype) {
  LinearOptions options;
  options.in_features = in;
  options.out_features = out;
  options.parameters.params_dtype = dtype;
  options.parameters.device = at::kCPU;
  return options;
}

AutocastOptions current_scaling() {
  AutocastOptions options;
  options.recipe = std::make_shared<const Float8CurrentScaling>();
  return options;
}

at::Tensor parameter(Linear& linear, const char* name) {
  return *linear.named_parameters().find(name);
}

at::Tensor leaf(const at::Tensor& values) { return values.detach().clone().requires_grad_(); }

TEST(Linear, bf16_output_equals_torch) {
  at::manual_seed(1);
  Linear linear(get_options(64, 48, at::kBFloat16));
  const at::Tensor x = at::randn({5, 7, 64}, at::kBFloat16);
  EXPECT_TRUE(same_bits(linear.forward(x),
                        at::linear(x, parameter(linear, "weight"), parameter(linear, "bias"))));
}

TEST(Linear, fp32_gradients_equal_torch_for_all_input_layouts) {
  at::manual_seed(2);
  Linear linear(get_options(32, 16, at::kFloat));
  const at::Tensor base = at::randn({4, 6, 64});
  const std::vector<at::Tensor> inputs{at::randn({8, 32}),
                                       at::randn({2, 3, 32}),
                                       at::randn({32}),
                                       base.slice(-1, 0, 64, 2),
                                       base.transpose(0, 1).narrow(2, 0, 32),
                                       at::randn({0, 32})};
  for (const at::Tensor& input : inputs) {
    const at::Tensor x = input.detach().requires_grad_();
    const at::Tensor weight = leaf(parameter(linear, "weight"));
    const at::Tensor bias = leaf(parameter(linear, "bias"));
    const at::Tensor expected = at::linear(x, weight, bias);
    const at::Tensor grad = at::randn_like(expected);
    expected.backward(grad);
    const at::Tensor dgrad = x.grad().clone();
    x.mutable_grad().reset();
    linear.zero_grad();
    const at::Tensor output = linear.forward(x);
    ASSERT_EQ(output.sizes(), expected.sizes());
    output.backward(grad);
    EXPECT_TRUE(at::allclose(output, expected, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(x.grad(), dgrad, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(parameter(linear, "weight").grad(), weight.grad(), 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(parameter(linear, "bias").grad(), bias.grad(), 1e-5, 1e-5));
  }
}

TEST(Linear, fp64_gradients_match_finite_differences) {
  at::manual_seed(3);
  Linear linear(get_options(5, 4, at::kDouble));
  const at::Tensor x = at::randn({3, 5}, at::kDouble).requires_grad_();
  const at::Tensor cotangent = at::randn({3, 4}, at::kDouble);
  linear.forward(x).backward(cotangent);
  const at::NoGradGuard no_grad;
  const double step = 1e-6;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const auto shifted = [&](double by) {
      at::Tensor moved = x.detach().clone();
      moved.view(-1)[i] += by;
      return (linear.forward(moved) * cotangent).sum().item<double>();
    };
    const double slope = (shifted(step) - shifted(-step)) / (2 * step);
    EXPECT_NEAR(x.grad().view(-1)[i].item<double>(), slope, 1e-7) << "element " << i;
  }
}

// |difference| <= K * 2^-23 * sum |a||b| (FP32 accumulation) + the output's own rounding, twice.
void expect_within_gemm_bound(const at::Tensor& output, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  const at::Tensor magnitude = at::mm(a.to(at::kDouble).abs(), b.to(at::kDouble).abs());
  const double accumulation = static_cast<double>(a.size(1)) * 0x1p-23;
  const double rounding = 2 * 0x1p-8;  // BF16
  const at::Tensor bound = magnitude * accumulation + exact.abs() * rounding;
  EXPECT_TRUE(((output.to(at::kDouble) - exact).abs() <= bound).all().item<bool>());
}

at::Tensor through_fp8(const at::Tensor& x, FormatId format) {
  CurrentScalingQuantizer quantizer(format);
  at::Tensor wide = quantizer.quantize(x.to(at::kFloat)).dequantize();
  return wide;
}

TEST(Linear, fp8_runs_three_quantized_gemms) {
  at::manual_seed(4);
  Linear linear(get_options(96, 64, at::kBFloat16));
  const at::Tensor x = at::randn({32, 96}, at::kBFloat16).requires_grad_();
  const at::Tensor grad = at::randn({32, 64}, at::kBFloat16);
  linear.forward(x);  // without autocast: not counted below
  const GemmCounts before = gemm_counts();
  at::Tensor output;
  {
    Autocast autocast(current_scaling());
    output = linear.forward(x);
  }
  output.backward(grad);
  const GemmCounts after = gemm_counts();
  EXPECT_EQ(after.quantized - before.quantized, 3U);
  EXPECT_EQ(after.high_precision, before.high_precision);

  const at::Tensor weight = parameter(linear, "weight").detach();
  const at::Tensor x8 = through_fp8(x.detach(), FormatId::e4m3);
  const at::Tensor w8 = through_fp8(weight, FormatId::e4m3);
  const at::Tensor g8 = through_fp8(grad, FormatId::e5m2);
  expect_within_gemm_bound(output, x8, w8.t());  // the bias is zero
  expect_within_gemm_bound(x.grad(), g8, w8);
  expect_within_gemm_bound(parameter(linear, "weight").grad(), g8.t(), x8);
  EXPECT_FALSE(same_bits(output, at::linear(x, weight, parameter(linear, "bias"))));
}

TEST(Linear, frozen_weight_skips_wgrad) {
  Linear linear(get_options(32, 32, at::kBFloat16));
  parameter(linear, "weight").set_requires_grad(false);
  const at::Tensor x = at::randn({16, 32}, at::kBFloat16).requires_grad_();
  const GemmCounts before = gemm_counts();
  {
    Autocast autocast(current_scaling());
    linear.forward(x).sum().backward();
  }
  EXPECT_EQ(gemm_counts().quantized - before.quantized, 2U);
  EXPECT_FALSE(parameter(linear, "weight").grad().defined());
  EXPECT_TRUE(x.grad().defined());
}

TEST(Linear, accepts_an_empty_batch_in_fp8) {
  Linear linear(get_options(32, 16, at::kBFloat16));
  const at::Tensor x = at::empty({0, 32}, at::kBFloat16).requires_grad_();
  Autocast autocast(current_scaling());
  const at::Tensor output = linear.forward(x);
  EXPECT_EQ(output.sizes(), at::IntArrayRef({0, 16}));
  output.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_EQ(parameter(linear, "weight").grad().abs().sum().item<float>(), 0.0F);
}

TEST(Linear, caches_the_quantized_weight_of_the_first_micro_batch) {
  Linear linear(get_options(32, 32, at::kBFloat16));
  const at::Tensor x = at::randn({16, 32}, at::kBFloat16);
  const auto run = [&](std::optional<bool> first) {
    Autocast autocast(current_scaling());
    return linear.forward(LinearInputs{x, first, false, false})[0].detach().clone();
  };
  const at::Tensor first = run(true);
  {
    const at::NoGradGuard no_grad;
    parameter(linear, "weight").mul_(2);
  }
  EXPECT_TRUE(same_bits(run(false), first)) << "the kept weight was not used";
  EXPECT_FALSE(same_bits(run(std::nullopt), first)) << "an uncached call used the kept weight";
  EXPECT_FALSE(same_bits(run(true), first)) << "a new minibatch used the old weight";
}

TEST(Linear, uses_a_weight_stored_in_fp8) {
  at::manual_seed(5);
  Linear linear(get_options(64, 32, at::kBFloat16));
  const at::Tensor weight = parameter(linear, "weight").detach().clone();
  CurrentScalingQuantizer quantizer(FormatId::e4m3);
  const QuantizedTensor stored = quantizer.quantize(weight);
  const at::Tensor x = at::randn({16, 64}, at::kBFloat16).requires_grad_();
  const auto run = [&] {
    Autocast autocast(current_scaling());
    return linear.forward(x);
  };
  const at::Tensor from_high_precision = run();
  const at::Tensor anchor = at::zeros({1}, at::kBFloat16).expand({32, 64}).requires_grad_();
  linear.set_tensor("weight", anchor, stored);
  const at::Tensor from_stored = run();
  EXPECT_TRUE(same_bits(from_high_precision, from_stored));
  from_stored.sum().backward();
  EXPECT_EQ(anchor.grad().sizes(), weight.sizes());
  EXPECT_TRUE(
      same_bits(linear.forward(x), at::linear(x, stored.dequantize(), parameter(linear, "bias"))));
}

TEST(Linear, uses_the_dtype_of_torch_autocast) {
  Linear linear(get_options(32, 16, at::kFloat));
  const at::Tensor x = at::randn({8, 32});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor output = linear.forward(x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  const auto bf16 = [](const at::Tensor& t) { return t.to(at::kBFloat16); };
  EXPECT_TRUE(same_bits(output, at::linear(bf16(x), bf16(parameter(linear, "weight")),
                                           bf16(parameter(linear, "bias")))));
}

TEST(Linear, errors_name_layer_tensor_and_shapes) {
  LinearOptions options = get_options(32, 16, at::kBFloat16);
  options.name = "layers.0.fc1";
  Linear linear(options);
  const auto run = [&](const at::Tensor& x) {
    return [&linear, x] {
      Autocast autocast(current_scaling());
      linear.forward(x);
    };
  };
  EXPECT_THAT(run(at::ones({16, 31}, at::kBFloat16)),
              ThrowsMessage<ShapeError>(
                  HasSubstr("layers.0.fc1: activation has shape [16, 31]; expected [..., 32]")));
  EXPECT_THAT(
      run(at::ones({16, 32})),
      ThrowsMessage<ShapeError>(HasSubstr("activation has dtype Float and weight BFloat16")));
  EXPECT_THAT(run(at::ones({16, 32}, at::kInt)),
              ThrowsMessage<ShapeError>(HasSubstr("activation has dtype Int")));
}

TEST(Linear, detects_in_place_change_of_the_input) {
  for (const bool three_dimensions : {false, true}) {
    Linear linear(get_options(16, 16, at::kFloat));
    const at::Tensor x = three_dimensions ? at::randn({2, 4, 16}) : at::randn({4, 16});
    const at::Tensor output = linear.forward(x);
    x.add_(1);
    EXPECT_THAT([&] { output.sum().backward(); },
                ThrowsMessage<std::exception>(HasSubstr("modified by an inplace operation")));
  }
}

TEST(Linear, detects_in_place_change_of_a_weight_part) {
  LinearOptions options = get_options(16, 16, at::kFloat);
  options.parameters_split = {{"query", 8}, {"key", 8}};
  for (const char* part : {"query_weight", "key_weight"}) {
    Linear linear(options);
    const at::Tensor output = linear.forward(at::randn({4, 16}).requires_grad_());
    {
      const at::NoGradGuard no_grad;
      parameter(linear, part).add_(1);
    }
    EXPECT_THAT([&] { output.sum().backward(); },
                ThrowsMessage<std::exception>(HasSubstr("modified by an inplace operation")));
  }
}

TEST(Linear, state_dict_contains_the_extra_state) {
  Linear linear(get_options(32, 16, at::kBFloat16));
  {
    Autocast autocast;  // delayed scaling
    linear.forward(at::randn({16, 32}, at::kBFloat16));
  }
  const StateDict state = state_dict(linear);
  ASSERT_TRUE(state.contains("_extra_state"));
  Linear other(get_options(32, 16, at::kBFloat16));
  load_state_dict(other, state);
  EXPECT_TRUE(same_bits(other.extra_state(), linear.extra_state()));
  EXPECT_GT(linear.extra_state().numel(), 0);
}

TEST(DefaultDevice, has_kernels_for_all_operators) {
  EXPECT_EQ(default_device(false), at::Device(at::kCPU));
  const bool runs_there = ops::runs_on(at::kCUDA);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(default_device(true).is_cuda(), runs_there);
  EXPECT_EQ(default_device(true).is_cuda(), runs_there);
  const std::string warned = ::testing::internal::GetCapturedStderr();
  constexpr const char* kText =
      "does not have kernels for it: modules without `device` are created on the CPU";
  EXPECT_EQ(warned.find(kText) != std::string::npos, !runs_there) << warned;
  EXPECT_EQ(warned.find(kText), warned.rfind(kText)) << "once";
  if (runs_there) GTEST_SKIP() << "this build has CUDA kernels";
  torch::Library with_cuda(torch::Library::IMPL, "telens", c10::DispatchKey::CUDA, __FILE__,
                           __LINE__);
  with_cuda.impl("gemm", torch::CppFunction::makeFallthrough());
  EXPECT_TRUE(default_device(true).is_cuda());
}

TEST(Linear, rejects_a_second_derivative) {
  Linear linear(get_options(16, 16, at::kFloat));
  const at::Tensor x = at::randn({4, 16}).requires_grad_();
  const at::Tensor loss = linear.forward(x).square().sum();
  EXPECT_THAT([&] { loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true); },
              ThrowsMessage<std::exception>(HasSubstr("second derivative")));
}

}  // namespace
}  // namespace telens
