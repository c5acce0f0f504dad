// fuse_wgrad_accumulation: the GEMM adds wgrad to main_grad.
#include "core/modules/shared/main_grad.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/modules/fused/layer_norm_linear.h"
#include "core/modules/fused/layer_norm_mlp.h"
#include "core/modules/linear/grouped_linear.h"
#include "core/modules/linear/linear.h"
#include "core/modules/transformer/multihead_attention.h"
#include "core/quantization/autocast.h"
#include "core/quantization/current_scaling.h"
#include "tests/core/modules/recording_listener.h"
#include "tests/core/modules/same_tensor.h"

namespace telens {
namespace {

using test::RecordingListener;
using test::same_bits;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kIn = 32, kOut = 48, kTokens = 64;

ParameterOptions fused(at::ScalarType dtype) {
  return {.params_dtype = dtype, .device = at::kCPU, .fuse_wgrad_accumulation = true};
}

Linear fused_linear(at::ScalarType dtype, bool bias = true) {
  return Linear(
      {.in_features = kIn, .out_features = kOut, .bias = bias, .parameters = fused(dtype)});
}

at::Tensor get_weight(torch::nn::Module& module, const char* name = "weight") {
  return *module.named_parameters().find(name);
}

at::Tensor with_main_grad(torch::nn::Module& module, const char* name = "weight") {
  const at::Tensor weight = get_weight(module, name);
  const at::Tensor main_grad = at::zeros(weight.sizes(), at::kFloat);
  set_main_grad(weight, main_grad);
  return main_grad;
}

// Small integers are exact as BF16 operands, and so are their products and sums in FP32.
at::Tensor integers(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randint(-4, 5, sizes).to(dtype);
}

AutocastOptions current_scaling() {
  return {.recipe = std::make_shared<const Float8CurrentScaling>()};
}

at::Tensor exact_wgrad(const at::Tensor& g, const at::Tensor& x) {
  return g.to(at::kDouble).t().mm(x.to(at::kDouble)).to(at::kFloat);
}

TEST(MainGrad, equals_exact_sum_over_micro_batches) {
  at::manual_seed(41);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    Linear linear = fused_linear(dtype);
    const at::Tensor main_grad = with_main_grad(linear);
    at::Tensor expected = at::zeros({kOut, kIn});
    for (int batch = 0; batch < 3; ++batch) {
      const at::Tensor x = integers({kTokens, kIn}, dtype), g = integers({kTokens, kOut}, dtype);
      linear.forward(x).backward(g);
      expected += exact_wgrad(g, x);
      EXPECT_TRUE(same_bits(main_grad, expected)) << dtype << ", batch " << batch;
    }
    EXPECT_FALSE(get_weight(linear).grad().defined());
    EXPECT_TRUE(get_weight(linear, "bias").grad().defined());
  }
}

TEST(MainGrad, fp8_product_is_added_unrounded) {
  at::manual_seed(42);
  Linear linear = fused_linear(at::kBFloat16);
  const at::Tensor main_grad = with_main_grad(linear);
  // Elements of one magnitude are exact under every scale.
  const at::Tensor x = at::full({kTokens, kIn}, 1 + 0x1p-7, at::kBFloat16);
  const at::Tensor g = at::full({kTokens, kOut}, 3.0, at::kBFloat16);
  for (int batch = 1; batch <= 2; ++batch) {
    Autocast autocast(current_scaling());
    linear.forward(x).backward(g);
  }
  const double expected = 2 * 3.0 * (1 + 0x1p-7) * kTokens;
  EXPECT_TRUE(at::allclose(main_grad, at::full({kOut, kIn}, expected), 1e-6, 0));
}

TEST(MainGrad, first_micro_batch_overwrites) {
  at::manual_seed(43);
  Linear linear = fused_linear(at::kFloat);
  const at::Tensor main_grad = with_main_grad(linear);
  main_grad.fill_(std::nan(""));
  const at::Tensor x = integers({kTokens, kIn}, at::kFloat);
  const at::Tensor g = integers({kTokens, kOut}, at::kFloat);
  for (const bool first : {true, false}) {
    linear.forward(LinearInputs{.inp = x, .is_first_microbatch = first})[0].backward(g);
  }
  EXPECT_TRUE(same_bits(main_grad, 2 * exact_wgrad(g, x)));
}

TEST(MainGrad, unchanged_by_empty_inputs_and_frozen_weights) {
  Linear linear = fused_linear(at::kFloat);
  const at::Tensor main_grad = with_main_grad(linear);
  main_grad.fill_(-0.0);
  const at::Tensor before = main_grad.clone();
  linear.forward(at::empty({0, kIn})).backward(at::empty({0, kOut}));
  EXPECT_TRUE(same_bits(main_grad, before));

  Linear frozen = fused_linear(at::kFloat);
  get_weight(frozen).set_requires_grad(false);  // and needs no main_grad
  const at::Tensor x = at::ones({kTokens, kIn}).requires_grad_();
  frozen.forward(x).backward(at::ones({kTokens, kOut}));
  EXPECT_TRUE(x.grad().defined());
}

TEST(MainGrad, dgrad_and_bias_gradient_are_unchanged) {
  at::manual_seed(44);
  Linear accumulating = fused_linear(at::kBFloat16);
  Linear plain({.in_features = kIn,
                .out_features = kOut,
                .parameters = {.params_dtype = at::kBFloat16, .device = at::kCPU}});
  {
    const at::NoGradGuard no_grad;
    get_weight(plain).copy_(get_weight(accumulating));
  }
  with_main_grad(accumulating);
  const at::Tensor x = at::randn({kTokens, kIn}, at::kBFloat16);
  const at::Tensor g = at::randn({kTokens, kOut}, at::kBFloat16);
  std::vector<at::Tensor> gradients;
  for (Linear* linear : {&accumulating, &plain}) {
    const at::Tensor input = x.clone().requires_grad_();
    linear->forward(input).backward(g);
    gradients.push_back(input.grad());
    gradients.push_back(get_weight(*linear, "bias").grad());
  }
  EXPECT_TRUE(same_bits(gradients[0], gradients[2]));
  EXPECT_TRUE(same_bits(gradients[1], gradients[3]));
}

// ---- watched

RoutingPlan watching_wgrad() {
  RoutingPlan plan;
  plan.inspect = RoutingPlan::get_bit(TensorName::wgrad);
  return plan;
}

TEST(MainGrad, inspected_layer_adds_the_inspected_fp32_product) {
  at::manual_seed(45);
  Linear linear = fused_linear(at::kBFloat16);
  const at::Tensor main_grad = with_main_grad(linear);
  at::Tensor seen;
  RecordingListener listener(watching_wgrad());
  listener.inspected = [&](const InspectTensorCall& call) { seen = call.tensor->clone(); };
  const at::Tensor x = at::randn({kTokens, kIn}, at::kBFloat16);
  const at::Tensor g = at::randn({kTokens, kOut}, at::kBFloat16);
  linear.forward(x).backward(g);
  EXPECT_EQ(seen.scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(main_grad, seen));
  EXPECT_TRUE(at::allclose(seen, exact_wgrad(g, x), 1e-4, 1e-4));
}

TEST(MainGrad, modified_wgrad_is_added) {
  Linear linear = fused_linear(at::kFloat);
  const at::Tensor main_grad = with_main_grad(linear);
  main_grad.fill_(1);
  RoutingPlan plan;
  plan.modify = RoutingPlan::get_bit(Gemm::wgrad, TensorName::wgrad);
  const RecordingListener listener(
      plan, [](const ModifyTensorCall& call) { return at::full_like(call.tensor, 5); });
  linear.forward(at::ones({kTokens, kIn})).backward(at::ones({kTokens, kOut}));
  EXPECT_TRUE(same_bits(main_grad, at::full({kOut, kIn}, 6.0F)));
}

// In a session, a layer adds the product in every iteration, watched or not.
TEST(MainGrad, inspecting_an_iteration_changes_no_bit) {
  at::manual_seed(46);
  const at::Tensor weight = at::randn({kOut, kIn}, at::kBFloat16);
  std::vector<at::Tensor> sums;
  for (const RoutingPlan& plan : {RoutingPlan{}, watching_wgrad()}) {
    at::manual_seed(47);
    Linear linear = fused_linear(at::kBFloat16);
    const RecordingListener listener(plan);
    sums.push_back(with_main_grad(linear));
    for (int batch = 0; batch < 3; ++batch) {
      linear.forward(at::randn({512, kIn}, at::kBFloat16))
          .backward(at::randn({512, kOut}, at::kBFloat16));
    }
  }
  EXPECT_TRUE(same_bits(sums[0], sums[1]));
}

// ---- every module

TEST(MainGrad, equals_grad_for_every_gemm_of_every_module) {
  at::manual_seed(48);
  const auto expect_same = [](auto make, auto run) {
    const auto accumulating = make(true), plain = make(false);
    std::map<std::string, at::Tensor> main_grads;
    {
      const at::NoGradGuard no_grad;
      for (const auto& item : accumulating->named_parameters()) {
        plain->named_parameters().find(item.key())->copy_(item.value());
        if (item.value().dim() == 2) {
          main_grads[item.key()] = with_main_grad(*accumulating, item.key().c_str());
        }
      }
    }
    run(*accumulating);
    run(*plain);
    for (const auto& item : plain->named_parameters()) {
      const at::Tensor grad = get_weight(*accumulating, item.key().c_str()).grad();
      const bool is_weight = main_grads.contains(item.key());
      EXPECT_EQ(grad.defined(), !is_weight) << item.key();
      EXPECT_TRUE(
          at::allclose(is_weight ? main_grads[item.key()] : grad, item.value().grad(), 1e-5, 1e-6))
          << item.key();
    }
  };
  const auto options = [](bool fuse) {
    return ParameterOptions{
        .params_dtype = at::kFloat, .device = at::kCPU, .fuse_wgrad_accumulation = fuse};
  };
  const at::Tensor x = at::randn({kTokens, kIn});
  expect_same(
      [&](bool fuse) {
        return std::make_shared<LayerNormLinear>(LayerNormLinearOptions{
            .in_features = kIn, .out_features = kOut, .parameters = options(fuse)});
      },
      [&](LayerNormLinear& module) { module({.inp = x})[0].pow(2).sum().backward(); });
  expect_same(
      [&](bool fuse) {
        return std::make_shared<LayerNormMLP>(LayerNormMLPOptions{
            .hidden_size = kIn, .ffn_hidden_size = kOut, .parameters = options(fuse)});
      },
      [&](LayerNormMLP& module) { module({.inp = x})[0].pow(2).sum().backward(); });
  expect_same(
      [&](bool fuse) {
        return std::make_shared<GroupedLinear>(GroupedLinearOptions{
            .num_gemms = 3, .in_features = kIn, .out_features = kOut, .parameters = options(fuse)});
      },
      [&](GroupedLinear& module) {
        module({.inp = x, .m_splits = {kTokens - 7, 0, 7}})[0].pow(2).sum().backward();
      });
  expect_same(
      [&](bool fuse) {
        return std::make_shared<MultiheadAttention>(
            MultiheadAttentionOptions{.hidden_size = kIn,
                                      .num_attention_heads = 2,
                                      .attention_dropout = 0,
                                      .fuse_qkv_params = true,
                                      .parameters = options(fuse)});
      },
      [&](MultiheadAttention& module) {
        module({.hidden_states = x.view({kTokens / 2, 2, kIn})})[0].pow(2).sum().backward();
      });
}

// ---- errors

TEST(MainGrad, missing_or_wrong_buffer_error_names_the_layer) {
  Linear linear({.in_features = kIn,
                 .out_features = kOut,
                 .parameters = fused(at::kFloat),
                 .name = "decoder.1.qkv"});
  const auto train = [&] {
    linear.forward(at::ones({kTokens, kIn})).backward(at::ones({kTokens, kOut}));
  };
  const auto refused = [](const char* why) { return ThrowsMessage<UsageError>(HasSubstr(why)); };
  EXPECT_THAT(train, refused("decoder.1.qkv: fuse_wgrad_accumulation adds the gradient of a "
                             "weight [48, 32] to its main_grad, which is missing; set "
                             "weight.main_grad"));
  const at::Tensor weight = get_weight(linear);
  set_main_grad(weight, at::zeros({kIn, kOut}));
  EXPECT_THAT(train, refused("decoder.1.qkv: main_grad has shape [32, 48] and dtype Float on cpu; "
                             "expected [48, 32] and Float, BFloat16 or Half on cpu"));
  set_main_grad(weight, at::zeros({kOut, kIn}, at::kDouble));
  EXPECT_THAT(train, refused("dtype Double on cpu; expected"));
  set_main_grad(weight, at::zeros({kOut, kIn}, at::device(at::kMeta)));
  EXPECT_THAT(train, refused("on meta; expected [48, 32] and Float, BFloat16 or Half on cpu"));
  set_main_grad(weight, at::Tensor());
  EXPECT_THAT(train, refused("which is missing"));
  set_main_grad(weight, at::zeros({kOut, kIn}));
  EXPECT_NO_THROW(train());
}

TEST(MainGrad, rejects_fp64) {
  Linear in_double = fused_linear(at::kDouble);
  with_main_grad(in_double);
  EXPECT_THAT(
      [&] {
        in_double.forward(at::ones({2, kIn}, at::kDouble))
            .backward(at::ones({2, kOut}, at::kDouble));
      },
      ThrowsMessage<UsageError>(HasSubstr("adds in FP32 and the layer computes in Double")));
}

}  // namespace
}  // namespace telens
