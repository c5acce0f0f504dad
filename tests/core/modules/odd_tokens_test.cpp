// FP8 layers with any number of tokens. Rows, gradients and scales equal, bit for bit, those of a
// batch that is padded with rows of zeros, and they match FP64 products of the quantized operands.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/gemm/gemm.h"
#include "core/modules/fused/layer_norm_linear.h"
#include "core/modules/fused/layer_norm_mlp.h"
#include "core/modules/linear/grouped_linear.h"
#include "core/modules/linear/linear.h"
#include "core/modules/transformer/transformer_layer.h"
#include "core/quantization/autocast.h"
#include "core/quantization/block_scaling.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"
#include "core/quantization/quantized_tensor.h"
#include "tests/core/double_reference.h"
#include "tests/core/modules/same_tensor.h"

namespace telens {
namespace {

using test::same_bits;

constexpr std::int64_t kIn = 64;
constexpr std::int64_t kOut = 96;
constexpr std::int64_t kTokens[] = {1, 5, 15, 17, 40, 130};

struct NamedRecipe {
  std::string name;
  std::shared_ptr<const Recipe> recipe;
  std::int64_t rows;   // the multiple of tokens that a GEMM needs
  std::int64_t along;  // the same where the sum runs over tokens
};

std::vector<NamedRecipe> recipes() {
  const auto nvfp4 = [](bool transforms) {
    auto recipe = std::make_shared<NVFP4BlockScaling>();
    recipe->disable_stochastic_rounding = true;  // padded batches would draw other random numbers
    recipe->disable_rht = !transforms;
    return recipe;
  };
  auto any_scales = std::make_shared<Float8BlockScaling>();
  any_scales->fp8_quant_fwd_inp.power_2_scale = false;
  any_scales->fp8_quant_fwd_weight.power_2_scale = false;
  any_scales->fp8_quant_bwd_grad.power_2_scale = false;
  return {{"delayed", std::make_shared<const DelayedScaling>(), 16, 16},
          {"current", std::make_shared<const Float8CurrentScaling>(), 16, 16},
          {"mxfp8", std::make_shared<const MXFP8BlockScaling>(), 32, 32},
          {"blocks", std::make_shared<const Float8BlockScaling>(), 16, 128},
          {"blocks under any scale", any_scales, 16, 128},
          {"nvfp4", nvfp4(true), 16, 32},
          {"nvfp4 without transform", nvfp4(false), 16, 32}};
}

std::int64_t rounded_up(std::int64_t size, std::int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

at::Tensor with_zeros_behind(const at::Tensor& rows, std::int64_t count) {
  return at::constant_pad_nd(rows, {0, 0, 0, count - rows.size(0)});
}

ParameterOptions parameters() {
  ParameterOptions options;
  options.params_dtype = at::kBFloat16;
  options.device = at::kCPU;
  return options;
}

// A module of one of the kinds below, as a function of one matrix.
struct Layer {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
};

Layer linear() {
  LinearOptions options{.in_features = kIn, .out_features = kOut};
  options.parameters = parameters();
  auto module = std::make_shared<Linear>(options);
  return {module, [module](const at::Tensor& x) { return module->forward(x); }};
}

// Without biases, norms and activations map rows of zeros to rows of zeros; with a bias a padded
// row becomes the bias.
Layer layer_norm_linear() {
  LayerNormLinearOptions options{.in_features = kIn, .out_features = kOut};
  options.parameters = parameters();
  auto module = std::make_shared<LayerNormLinear>(options);
  return {module, [module](const at::Tensor& x) { return module->forward({x})[0]; }};
}

Layer layer_norm_mlp() {
  LayerNormMLPOptions options{.hidden_size = kIn, .ffn_hidden_size = kOut, .bias = false};
  options.activation = "swiglu";
  options.parameters = parameters();
  auto module = std::make_shared<LayerNormMLP>(options);
  return {module, [module](const at::Tensor& x) { return module->forward({x})[0]; }};
}

struct Results {
  at::Tensor y, dx;
  std::vector<std::pair<std::string, at::Tensor>> gradients;
};

// Two steps, because delayed scaling has a scale from an amax only in the second one.
Results run(Layer layer, const std::shared_ptr<const Recipe>& recipe, const at::Tensor& x,
            const at::Tensor& grad) {
  AutocastOptions options;
  options.recipe = recipe;
  Results results;
  for (int step = 0; step < 2; ++step) {
    const at::Tensor leaf = x.detach().clone().set_requires_grad(true);
    layer.module->zero_grad();
    {
      const Autocast autocast(options);
      results.y = layer.forward(leaf);
    }
    results.y.backward(grad);
    results.dx = leaf.grad();
  }
  for (const auto& item : layer.module->named_parameters()) {
    results.gradients.emplace_back(item.key(), item.value().grad().clone());
  }
  return results;
}

// The results of a new layer with the same parameters.
Results run(Layer (*make)(), const std::shared_ptr<const Recipe>& recipe, const at::Tensor& x,
            const at::Tensor& grad) {
  at::manual_seed(41);
  return run(make(), recipe, x, grad);
}

void expect_as_with_zeros_behind(Layer (*make)(), const NamedRecipe& named, std::int64_t tokens) {
  SCOPED_TRACE(named.name + ", " + std::to_string(tokens) + " tokens");
  at::manual_seed(tokens);
  const at::Tensor x = at::randn({tokens, kIn}).to(at::kBFloat16);
  const std::int64_t out = make == layer_norm_mlp ? kIn : kOut;
  const at::Tensor grad = at::randn({tokens, out}).to(at::kBFloat16);
  const Results odd = run(make, named.recipe, x, grad);
  const auto padded = [&](std::int64_t multiple) {
    const std::int64_t count = rounded_up(tokens, multiple);
    return run(make, named.recipe, with_zeros_behind(x, count), with_zeros_behind(grad, count));
  };
  const Results by_rows = padded(named.rows);
  EXPECT_TRUE(same_bits(odd.y, by_rows.y.narrow(0, 0, tokens)));
  EXPECT_TRUE(same_bits(odd.dx, by_rows.dx.narrow(0, 0, tokens)));
  const Results along = padded(named.along);
  for (std::size_t i = 0; i < odd.gradients.size(); ++i) {
    const auto& [name, gradient] = odd.gradients[i];
    // others are sums over rows, whose order may differ
    const bool is_product = gradient.dim() == 2;
    if (is_product) {
      EXPECT_TRUE(same_bits(gradient, along.gradients[i].second)) << name;
    } else {
      EXPECT_TRUE(test::near(gradient, along.gradients[i].second, 0x1p-7, 1e-5)) << name;
    }
  }
}

TEST(TokensOfAnyNumber, linear_equals_zero_padded_tokens) {
  for (const NamedRecipe& named : recipes()) {
    for (const std::int64_t tokens : kTokens) expect_as_with_zeros_behind(linear, named, tokens);
  }
}

TEST(TokensOfAnyNumber, layer_norm_linear_equals_zero_padded_tokens) {
  for (const NamedRecipe& named : recipes()) {
    for (const std::int64_t tokens : kTokens) {
      expect_as_with_zeros_behind(layer_norm_linear, named, tokens);
    }
  }
}

TEST(TokensOfAnyNumber, layer_norm_mlp_equals_zero_padded_tokens) {
  for (const NamedRecipe& named : recipes()) {
    for (const std::int64_t tokens : kTokens) {
      expect_as_with_zeros_behind(layer_norm_mlp, named, tokens);
    }
  }
}

// Both copies as the recipe makes them, in double. The random Hadamard transform works on whole
// strips of 16 rows, so errors also reach the padded rows.
struct Operands {
  at::Tensor rowwise, columnwise;
};
Operands get_values(const Recipe& recipe, TensorRole role, const at::Tensor& x) {
  const auto quantizer = recipe.make_quantizer(role, nullptr);
  QuantizedTensor first = quantizer->quantize(x);
  QuantizedTensor second = quantizer->quantize(with_zeros_behind(x, rounded_up(x.size(0), 16)));
  first.dtype = second.dtype = at::kFloat;
  second.rowwise = {};
  return {first.dequantize().to(at::kDouble), second.dequantize().to(at::kDouble)};
}

TEST(TokensOfAnyNumber, products_match_dequantized_fp64) {
  for (const NamedRecipe& named : recipes()) {
    if (named.name == "delayed") continue;  // its scale is made of earlier amaxes
    for (const std::int64_t tokens : kTokens) {
      SCOPED_TRACE(named.name + ", " + std::to_string(tokens) + " tokens");
      at::manual_seed(tokens);
      const at::Tensor x = at::randn({tokens, kIn}).to(at::kBFloat16);
      const at::Tensor grad = at::randn({tokens, kOut}).to(at::kBFloat16);
      at::manual_seed(41);
      const Layer layer = linear();
      const Results results = run(layer, named.recipe, x, grad);
      const auto parameters = layer.module->named_parameters();
      const Operands activation = get_values(*named.recipe, TensorRole::input, x);
      const Operands gradient = get_values(*named.recipe, TensorRole::grad_output, grad);
      const Operands weight =
          get_values(*named.recipe, TensorRole::weight, parameters["weight"].detach());
      const auto expect_near = [](const at::Tensor& actual, const at::Tensor& a,
                                  const at::Tensor& b, const char* what) {
        // FP32 sums of at most 130 products, rounded to BF16.
        const at::Tensor bound = a.abs().mm(b.abs()) * 0x1p-16 + a.mm(b).abs() * 0x1p-8;
        const at::Tensor error = (actual.to(at::kDouble) - a.mm(b)).abs();
        EXPECT_TRUE((error <= bound + 1e-30).all().item<bool>())
            << what << " is off by " << (error - bound).max().item<double>();
      };
      expect_near(results.y, activation.rowwise, weight.rowwise.t(), "fprop");
      expect_near(results.dx, gradient.rowwise, weight.columnwise, "dgrad");
      expect_near(parameters["weight"].grad(), gradient.columnwise.t(), activation.columnwise,
                  "wgrad");
      EXPECT_TRUE(test::near(parameters["bias"].grad(), grad.to(at::kDouble).sum(0), 0x1p-8, 1e-6));
    }
  }
}

// m_splits that are not multiples of the block size need no padding.
TEST(TokensOfAnyNumber, grouped_linear_equals_separate_linears) {
  const std::vector<std::int64_t> splits{3, 0, 17, 44};
  for (const NamedRecipe& named : recipes()) {
    SCOPED_TRACE(named.name);
    at::manual_seed(6);
    GroupedLinearOptions options{.num_gemms = 4, .in_features = kIn, .out_features = kOut};
    options.parameters = parameters();
    GroupedLinear grouped(options);
    const at::Tensor x = at::randn({64, kIn}).to(at::kBFloat16);
    const at::Tensor grad = at::randn({64, kOut}).to(at::kBFloat16);
    AutocastOptions autocast_options;
    autocast_options.recipe = named.recipe;
    const at::Tensor leaf = x.clone().set_requires_grad(true);
    at::Tensor y;
    {
      const Autocast autocast(autocast_options);
      y = grouped.forward({leaf, splits})[0];
    }
    y.backward(grad);
    std::int64_t first = 0;
    for (std::size_t i = 0; i < splits.size(); ++i) {
      if (splits[i] == 0) continue;
      const Layer alone = linear();
      const auto of_group = grouped.named_parameters();
      const at::NoGradGuard no_grad;
      for (const char* name : {"weight", "bias"}) {
        alone.module->named_parameters()[name].copy_(of_group[name + std::to_string(i)]);
      }
      at::AutoGradMode grad_mode(true);
      const at::Tensor part = x.narrow(0, first, splits[i]).clone().set_requires_grad(true);
      at::Tensor expected;
      {
        const Autocast autocast(autocast_options);
        expected = alone.forward(part);
      }
      expected.backward(grad.narrow(0, first, splits[i]));
      EXPECT_TRUE(same_bits(y.narrow(0, first, splits[i]), expected)) << i;
      EXPECT_TRUE(same_bits(leaf.grad().narrow(0, first, splits[i]), part.grad())) << i;
      EXPECT_TRUE(same_bits(of_group["weight" + std::to_string(i)].grad(),
                            alone.module->named_parameters()["weight"].grad()))
          << i;
      first += splits[i];
    }
  }
}

// A sequence of 7 and, as in generation, of one token.
TEST(TokensOfAnyNumber, run_through_a_transformer_layer_in_fp8) {
  for (const NamedRecipe& named : recipes()) {
    for (const std::int64_t length : {1, 7}) {
      SCOPED_TRACE(named.name + ", " + std::to_string(length));
      at::manual_seed(8);
      TransformerLayerOptions options{.hidden_size = 64,
                                      .ffn_hidden_size = 96,
                                      .num_attention_heads = 4,
                                      .hidden_dropout = 0,
                                      .attention_dropout = 0};
      options.parameters = parameters();
      TransformerLayer layer(options);
      const at::Tensor x = at::randn({length, 3, 64}).to(at::kBFloat16).set_requires_grad(true);
      const at::Tensor exact = layer.forward({x})[0];
      AutocastOptions autocast_options;
      autocast_options.recipe = named.recipe;
      const GemmCounts before = gemm_counts();
      at::Tensor y;
      {
        const Autocast autocast(autocast_options);
        y = layer.forward({x})[0];
      }
      y.backward(at::ones_like(y));
      EXPECT_EQ(gemm_counts().high_precision, before.high_precision);
      EXPECT_GT(gemm_counts().quantized, before.quantized);
      const double error =
          ((y - exact).to(at::kDouble).norm() / exact.to(at::kDouble).norm()).item<double>();
      EXPECT_LT(error, named.recipe->name() == "nvfp4" ? 0.3 : 0.1);
      EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
    }
  }
}

TEST(TokenPadding, pads_to_the_smallest_valid_multiple) {
  const auto padded = [](Gemm gemm, ScalingMode mode, std::int64_t tokens) {
    QuantizedTensor a;
    a.mode = mode;
    a.sizes = {tokens, kIn};
    a.rowwise.codes = at::empty({tokens, kIn}, at::kByte);
    a.columnwise.codes = at::empty({kIn, tokens}, at::kByte);
    return token_padding(gemm, a).padded;
  };
  for (const ScalingMode mode : {ScalingMode::tensor, ScalingMode::mxfp8, ScalingMode::block_1d,
                                 ScalingMode::block_2d, ScalingMode::nvfp4}) {
    for (const Gemm gemm : kAllGemms) EXPECT_EQ(padded(gemm, mode, 96), 96);
  }
  EXPECT_EQ(padded(Gemm::fprop, ScalingMode::tensor, 1), 16);
  EXPECT_EQ(padded(Gemm::wgrad, ScalingMode::tensor, 17), 32);
  EXPECT_EQ(padded(Gemm::dgrad, ScalingMode::mxfp8, 48), 64);
  EXPECT_EQ(padded(Gemm::wgrad, ScalingMode::block_1d, 48), 48);
  EXPECT_EQ(padded(Gemm::wgrad, ScalingMode::block_1d, 50), 128);
  EXPECT_EQ(padded(Gemm::dgrad, ScalingMode::block_2d, 50), 64);
  EXPECT_EQ(padded(Gemm::wgrad, ScalingMode::nvfp4, 33), 64);
}

}  // namespace
}  // namespace telens
