// Rules for shapes and biases of FP8 GEMMs in all layers, on every device.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/modules/fused/layer_norm_mlp.h"
#include "core/modules/linear/linear.h"
#include "core/quantization/autocast.h"
#include "core/quantization/block_scaling.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"
#include "tests/core/modules/same_tensor.h"

namespace telens {
namespace {

using test::same_bits;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

template <typename RecipeT>
AutocastOptions under() {
  AutocastOptions options;
  options.recipe = std::make_shared<const RecipeT>();
  return options;
}

LinearOptions linear_options(std::int64_t in, std::int64_t out, at::ScalarType dtype) {
  LinearOptions options;
  options.in_features = in;
  options.out_features = out;
  options.parameters.params_dtype = dtype;
  options.parameters.device = at::kCPU;
  options.name = "layers.0.fc1";
  return options;
}

// The output for an input of zeros, which is the bias.
at::Tensor output_of_zeros(const AutocastOptions& options, at::ScalarType dtype, double bias) {
  Linear linear(linear_options(64, 32, dtype));
  const at::NoGradGuard no_grad;
  linear.named_parameters()["bias"].fill_(bias);
  const Autocast autocast(options);
  return linear.forward(at::zeros({32, 64}, dtype));
}

// BF16 has 8 significant bits, FP16 11: neither represents its constant.
constexpr double kBeyondBf16 = 1 + 0x1p-10;
constexpr double kBeyondFp16 = 1 + 0x1p-20;

TEST(BiasOfAGemm, fp32_bias_is_rounded_to_bf16_under_every_recipe) {
  const at::Tensor rounded = at::ones({32, 32});
  for (const AutocastOptions& recipe :
       {under<DelayedScaling>(), under<Float8CurrentScaling>(), under<MXFP8BlockScaling>(),
        under<Float8BlockScaling>(), under<NVFP4BlockScaling>()}) {
    SCOPED_TRACE(std::string(recipe.recipe->name()));
    EXPECT_TRUE(same_bits(output_of_zeros(recipe, at::kFloat, kBeyondBf16), rounded));
    EXPECT_TRUE(same_bits(output_of_zeros(recipe, at::kFloat, kBeyondFp16), rounded));
    EXPECT_TRUE(same_bits(output_of_zeros(recipe, at::kFloat, 1 + 0x1.8p-8), rounded + 0x1p-7))
        << "to nearest, not towards zero";
  }
}

TEST(BiasOfAGemm, other_biases_are_not_rounded) {
  const AutocastOptions fp8 = under<Float8CurrentScaling>();
  EXPECT_TRUE(same_bits(output_of_zeros(fp8, at::kHalf, kBeyondBf16),
                        at::full({32, 32}, kBeyondBf16, at::kHalf)));
  AutocastOptions off = fp8;
  off.enabled = false;
  EXPECT_TRUE(same_bits(output_of_zeros(off, at::kFloat, kBeyondFp16),
                        at::full({32, 32}, kBeyondFp16, at::kFloat)));
  auto forward_in_high_precision = std::make_shared<Float8CurrentScaling>();
  forward_in_high_precision->override_linear_precision.fprop = true;
  AutocastOptions only_backward;
  only_backward.recipe = forward_in_high_precision;
  EXPECT_TRUE(same_bits(output_of_zeros(only_backward, at::kFloat, kBeyondFp16),
                        at::full({32, 32}, kBeyondFp16, at::kFloat)));
}

TEST(BiasOfAGemm, gradient_keeps_the_bias_dtype) {
  Linear linear(linear_options(64, 32, at::kFloat));
  {
    const Autocast autocast(under<Float8CurrentScaling>());
    linear.forward(at::randn({32, 64})).sum().backward();
  }
  EXPECT_TRUE(same_bits(linear.named_parameters()["bias"].grad(), at::full({32}, 32.0F)));
}

// Runs the layer with the recipe on an input of ones of the given size.
template <typename RecipeT, typename Layer>
auto running(Layer& layer, at::IntArrayRef sizes) {
  return [&layer, x = at::ones(sizes)] {
    const Autocast autocast(under<RecipeT>());
    layer({x});
  };
}

TEST(ShapeOfAGemm, unsupported_features_error_names_layer_and_shape) {
  Linear narrow(linear_options(64, 24, at::kFloat));
  EXPECT_THAT(
      running<Float8CurrentScaling>(narrow, {16, 64}),
      ThrowsMessage<ShapeError>(HasSubstr(
          "layers.0.fc1: weight has shape [24, 64]; FP8 GEMMs require both dimensions to be "
          "multiples of 16. Change the layer's features or run it outside fp8_autocast. In a "
          "converted model, pass the recipe, which excludes such layers: "
          "te.convert(model, recipe=recipe)")));
  Linear linear(linear_options(64, 48, at::kFloat));
  EXPECT_THAT(
      running<MXFP8BlockScaling>(linear, {32, 64}),
      ThrowsMessage<ShapeError>(HasSubstr("weight has shape [48, 64]; FP8 GEMMs require both "
                                          "dimensions to be multiples of 32")));
  EXPECT_NO_THROW(running<Float8CurrentScaling>(linear, {16, 64})());
}

TEST(ShapeOfAGemm, other_modules_name_their_layers) {
  LayerNormMLPOptions of_mlp{.hidden_size = 32, .ffn_hidden_size = 40};
  of_mlp.name = "block.mlp";
  LayerNormMLP mlp(of_mlp);
  EXPECT_THAT(running<Float8CurrentScaling>(mlp, {16, 32}),
              ThrowsMessage<ShapeError>(HasSubstr("block.mlp.fc1: weight has shape [40, 32]")));
}

// We call no product of torch that adds to an existing tensor. So the gradients of two backward
// passes are two products and one addition, in every dtype.
TEST(WeightGradient, two_backwards_accumulate) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool fp8 : {false, true}) {
      at::manual_seed(31);
      Linear linear(linear_options(64, 32, dtype));
      const at::Tensor first = at::randn({16, 64}).to(dtype),
                       second = at::randn({16, 64}).to(dtype);
      const at::Tensor grad = at::randn({16, 32}).to(dtype);
      const auto backward = [&](const at::Tensor& x) {
        at::Tensor y;
        {
          AutocastOptions options = under<Float8CurrentScaling>();
          options.enabled = fp8;
          const Autocast autocast(options);
          y = linear.forward(x);
        }
        y.backward(grad);
        return linear.named_parameters()["weight"].grad().clone();
      };
      const at::Tensor alone = backward(first);
      linear.zero_grad();
      const at::Tensor other = backward(second);
      const at::Tensor both = backward(first);
      EXPECT_TRUE(same_bits(both, other + alone)) << c10::toString(dtype) << fp8;
    }
  }
}

}  // namespace
}  // namespace telens
