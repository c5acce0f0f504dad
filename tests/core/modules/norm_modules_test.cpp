// LayerNorm, RMSNorm, LayerNormLinear and LayerNormMLP.
#include <ATen/autocast_mode.h>

#include "core/modules/fused/layer_norm_linear.h"
#include "core/modules/fused/layer_norm_mlp.h"
#include "core/modules/module/module.h"
#include "core/modules/norm/norm.h"
#include "tests/core/modules/module_reference.h"

namespace telens {
namespace {

using test::Leaf;
using test::near;
using test::ReferenceParameters;

class NormModules : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(11); }
};

TEST_F(NormModules, equal_torch) {
  LayerNorm layer_norm({.normalized_shape = {24}});
  RMSNorm rms_norm({.normalized_shape = {24}});
  const at::Tensor x = at::randn({3, 5, 24});
  EXPECT_TRUE(near(layer_norm.forward({x})[0], at::layer_norm(x, {24}), 1e-5, 1e-5));
  EXPECT_TRUE(near(rms_norm.forward({x})[0], at::rms_norm(x, {24}, {}, 1e-5), 1e-5, 1e-5));
}

TEST_F(NormModules, initial_factor_is_one) {
  const at::Tensor x = at::randn({4, 16});
  LayerNorm plain({.normalized_shape = {16}});
  LayerNorm centered({.normalized_shape = {16}, .zero_centered_gamma = true});
  EXPECT_TRUE(at::equal(centered.named_parameters()["weight"], at::zeros({16})));
  EXPECT_TRUE(at::equal(plain.forward({x})[0], centered.forward({x})[0]));
}

TEST_F(NormModules, fp64_equals_torch) {
  const at::Tensor x = at::randn({3, 5, 24}, at::kDouble);
  NormModuleOptions options{.normalized_shape = {24}, .zero_centered_gamma = true};
  options.parameters.params_dtype = at::kDouble;
  LayerNorm layer_norm(options);
  RMSNorm rms_norm(options);
  test::randomize(layer_norm);
  test::randomize(rms_norm);
  const auto parameters = layer_norm.named_parameters();
  EXPECT_TRUE(at::equal(layer_norm.forward({x})[0],
                        at::layer_norm(x, {24}, parameters["weight"] + 1, parameters["bias"])));
  EXPECT_TRUE(at::equal(rms_norm.forward({x})[0],
                        at::rms_norm(x, {24}, rms_norm.named_parameters()["weight"] + 1, 1e-5)));
}

TEST_F(NormModules, mlp_supports_fp64_with_every_activation) {
  for (const ops::Activation& activation : ops::kActivations) {
    LayerNormMLPOptions options{.hidden_size = 8, .ffn_hidden_size = 16};
    options.activation = activation.name;
    LayerNormMLP single(options);
    options.parameters.params_dtype = at::kDouble;
    LayerNormMLP module(options);
    test::randomize(single);
    for (const auto& item : single.named_parameters()) {
      const at::NoGradGuard no_grad;
      module.named_parameters()[item.key()].copy_(item.value());
    }
    const at::Tensor x = at::randn({3, 8});
    const at::Tensor wide = x.to(at::kDouble).requires_grad_();
    const at::Tensor output = module.forward({.inp = wide})[0];
    EXPECT_EQ(output.scalar_type(), at::kDouble);
    EXPECT_TRUE(near(single.forward({.inp = x})[0], output, 1e-4, 1e-5)) << activation.name;
    output.sum().backward();
    EXPECT_EQ(wide.grad().scalar_type(), at::kDouble);
  }
}

struct LinearCase {
  std::string normalization;
  bool bias;
};

TEST_F(NormModules, layer_norm_linear_equals_its_parts_in_fp64) {
  for (const LinearCase& of : {LinearCase{"LayerNorm", true}, {"RMSNorm", false}}) {
    LayerNormLinear module({.in_features = 32,
                            .out_features = 48,
                            .normalization = of.normalization,
                            .bias = of.bias,
                            .return_layernorm_output = true});
    test::randomize(module);
    const ReferenceParameters parameters(module);
    const Leaf x(at::randn({6, 2, 32}));
    const Outputs outputs = module.forward({.inp = x.tensor});
    const at::Tensor normalized = test::norm_reference(x.reference, parameters["layer_norm_weight"],
                                                       parameters["layer_norm_bias"]);
    const at::Tensor expected =
        test::linear_reference(normalized, parameters["weight"], parameters["bias"]);
    ASSERT_EQ(outputs.size(), 2);
    EXPECT_TRUE(near(outputs[0], expected, 1e-5, 1e-5));
    EXPECT_TRUE(near(outputs[1], normalized, 1e-5, 1e-5));

    const at::Tensor grad = at::randn(expected.sizes());
    outputs[0].backward(grad);
    expected.backward(grad.to(at::kDouble));
    EXPECT_TRUE(near(x.tensor.grad(), x.reference.grad(), 1e-4, 1e-5));
    EXPECT_TRUE(parameters.gradients_near(module, 1e-4, 3e-5));
  }
}

TEST_F(NormModules, return_bias_returns_it_separately) {
  LayerNormLinear module({.in_features = 16, .out_features = 16, .return_bias = true});
  test::randomize(module);
  LayerNormLinear adding({.in_features = 16, .out_features = 16});
  load_state_dict(adding, state_dict(module));
  const at::Tensor x = at::randn({4, 16});
  const Outputs outputs = module.forward({.inp = x});
  ASSERT_EQ(outputs.size(), 2);
  EXPECT_TRUE(near(outputs[0] + outputs[1], adding.forward({.inp = x})[0], 1e-5, 1e-5));
}

at::Tensor activation_reference(const std::string& name, const at::Tensor& x) {
  if (name == "gelu") return at::gelu(x, "tanh");
  if (name == "relu") return at::relu(x);
  const auto halves = x.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

TEST_F(NormModules, layer_norm_mlp_equals_its_parts_in_fp64) {
  for (const std::string activation : {"gelu", "relu", "swiglu"}) {
    SCOPED_TRACE(activation);
    LayerNormMLP module({.hidden_size = 32,
                         .ffn_hidden_size = 64,
                         .normalization = activation == "swiglu" ? "RMSNorm" : "LayerNorm",
                         .activation = activation});
    test::randomize(module);
    const ReferenceParameters parameters(module);
    const Leaf x(at::randn({5, 3, 32}));
    const at::Tensor y = module.forward({.inp = x.tensor})[0];
    const at::Tensor normalized = test::norm_reference(x.reference, parameters["layer_norm_weight"],
                                                       parameters["layer_norm_bias"]);
    const at::Tensor hidden = activation_reference(
        activation,
        test::linear_reference(normalized, parameters["fc1_weight"], parameters["fc1_bias"]));
    const at::Tensor expected =
        test::linear_reference(hidden, parameters["fc2_weight"], parameters["fc2_bias"]);
    EXPECT_TRUE(near(y, expected, 1e-5, 1e-5));

    const at::Tensor grad = at::randn(y.sizes());
    y.backward(grad);
    expected.backward(grad.to(at::kDouble));
    EXPECT_TRUE(near(x.tensor.grad(), x.reference.grad(), 1e-4, 2e-5));
    EXPECT_TRUE(parameters.gradients_near(module, 1e-4, 5e-5));
  }
}

TEST_F(NormModules, use_the_dtype_of_torch_autocast) {
  LayerNormMLP module({.hidden_size = 32, .ffn_hidden_size = 32});
  const at::Tensor x = at::randn({16, 32}).set_requires_grad(true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor y = module.forward({.inp = x})[0];
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(near(y, module.forward({.inp = x})[0], 0.05, 0.05));
  y.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  for (const auto& item : module.named_parameters()) {
    EXPECT_EQ(item.value().grad().scalar_type(), at::kFloat) << item.key();
  }
}

TEST_F(NormModules, accept_empty_and_strided_inputs) {
  LayerNormMLP module({.hidden_size = 16, .ffn_hidden_size = 32, .activation = "swiglu"});
  const at::Tensor empty = at::randn({0, 4, 16}).set_requires_grad(true);
  const at::Tensor y = module.forward({.inp = empty})[0];
  EXPECT_EQ(y.sizes(), empty.sizes());
  y.sum().backward();
  EXPECT_TRUE(at::equal(module.named_parameters()["fc1_weight"].grad(), at::zeros({64, 16})));

  const at::Tensor strided = at::randn({16, 3, 2}).permute({1, 2, 0});
  EXPECT_TRUE(at::equal(module.forward({.inp = strided})[0],
                        module.forward({.inp = strided.contiguous()})[0]));
}

TEST_F(NormModules, reject_unknown_normalization_or_activation) {
  EXPECT_THROW(LayerNormLinear({.in_features = 8, .out_features = 8, .normalization = "Batch"}),
               UsageError);
  EXPECT_THROW(LayerNormMLP({.hidden_size = 8, .ffn_hidden_size = 8, .activation = "gello"}),
               UsageError);
}

}  // namespace
}  // namespace telens
