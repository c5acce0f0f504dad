// Linear with a listener: the order of the calls, and that watching changes no bit.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "core/hook_points.h"
#include "core/modules/linear/linear.h"
#include "core/quantization/autocast.h"
#include "core/quantization/current_scaling.h"
#include "tests/core/modules/recording_listener.h"
#include "tests/core/modules/same_tensor.h"

namespace telens {
namespace {

using test::RecordingListener;
using test::same_bits;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::uint8_t kAllTensorBits = 0b111111;
constexpr std::uint32_t kAllPairBits = (1U << (kAllGemms.size() * kLinearTensors.size())) - 1;

LinearOptions options() {
  LinearOptions options;
  options.in_features = 32;
  options.out_features = 16;
  options.name = "fc";
  options.parameters.params_dtype = at::kBFloat16;
  options.parameters.device = at::kCPU;
  return options;
}

struct Results {
  at::Tensor output, dgrad, wgrad, bias_grad;
};

Results train_step(Linear& linear, const at::Tensor& input, bool fp8) {
  const at::Tensor x = input.detach().clone().requires_grad_();
  linear.zero_grad();
  at::Tensor output;
  {
    std::optional<Autocast> autocast;
    if (fp8) {
      AutocastOptions options;
      options.recipe = std::make_shared<const Float8CurrentScaling>();
      autocast.emplace(options);
    }
    output = linear.forward(x);
  }
  output.backward(at::ones_like(output));
  const auto parameters = linear.named_parameters();
  return {output.detach(), x.grad(), parameters["weight"].grad().clone(),
          parameters["bias"].grad().clone()};
}

void expect_same_bits(const Results& a, const Results& b) {
  EXPECT_TRUE(same_bits(a.output, b.output));
  EXPECT_TRUE(same_bits(a.dgrad, b.dgrad));
  EXPECT_TRUE(same_bits(a.wgrad, b.wgrad));
  EXPECT_TRUE(same_bits(a.bias_grad, b.bias_grad));
}

Operand unchanged(const ModifyTensorCall& call) { return call.tensor; }

TEST(WatchedLinear, full_inspection_changes_no_bit) {
  at::manual_seed(1);
  Linear linear(options());
  const at::Tensor x = at::randn({48, 32}, at::kBFloat16);
  for (const bool fp8 : {false, true}) {
    const Results plain = train_step(linear, x, fp8);
    RecordingListener listener({.postquantize = kAllPairBits, .inspect = kAllTensorBits});
    const Results watched = train_step(linear, x, fp8);
    EXPECT_EQ(listener.routed, 1);
    EXPECT_FALSE(listener.calls.empty());
    expect_same_bits(plain, watched);
  }
}

TEST(WatchedLinear, calls_follow_the_contract_order) {
  Linear linear(options());
  const at::Tensor x = at::ones({16, 32}, at::kBFloat16);
  RecordingListener listener({.postquantize = kAllPairBits, .inspect = kAllTensorBits});
  train_step(linear, x, /*fp8=*/true);
  EXPECT_THAT(listener.calls,
              ElementsAre("inspect activation", "postquantize fprop activation",
                          "postquantize wgrad activation", "inspect weight",
                          "postquantize fprop weight", "postquantize dgrad weight",
                          "inspect output", "inspect gradient", "postquantize dgrad gradient",
                          "postquantize wgrad gradient", "inspect dgrad", "inspect wgrad"));
}

TEST(WatchedLinear, modifies_second_gemm_first_and_inspects_original) {
  Linear linear(options());
  const at::Tensor x = at::ones({16, 32}, at::kBFloat16);
  RecordingListener listener({.modify = kAllPairBits, .inspect = kAllTensorBits}, unchanged);
  const Results modified = train_step(linear, x, /*fp8=*/true);
  EXPECT_THAT(
      listener.calls,
      ElementsAre("modify wgrad activation", "modify fprop activation", "inspect activation",
                  "modify dgrad weight", "modify fprop weight", "inspect weight",
                  "modify fprop output", "inspect output", "modify wgrad gradient",
                  "modify dgrad gradient", "inspect gradient", "modify dgrad dgrad",
                  "inspect dgrad", "modify wgrad wgrad", "inspect wgrad"));
  // If a modification returns a high-precision tensor, the GEMMs run in high precision.
  Linear plain(options());
  plain.set_tensor("weight", linear.named_parameters()["weight"].detach().requires_grad_());
  expect_same_bits(modified, train_step(plain, x, /*fp8=*/false));
}

TEST(WatchedLinear, calls_below_autograd_in_forward_and_backward) {
  // Where autograd is active, each of our operators would be called with boxed arguments, which is
  // slow.
  Linear linear(options());
  RecordingListener listener({.inspect = kAllTensorBits});
  train_step(linear, at::ones({16, 32}, at::kBFloat16), /*fp8=*/true);
  EXPECT_EQ(listener.calls.size(), 6U);
  EXPECT_EQ(listener.above_autograd, 0);
}

TEST(WatchedLinear, no_postquantize_call_without_a_cast) {
  Linear linear(options());
  RecordingListener listener({.postquantize = kAllPairBits});
  train_step(linear, at::ones({16, 32}, at::kBFloat16), /*fp8=*/false);
  EXPECT_TRUE(listener.calls.empty());
}

TEST(WatchedLinear, mixed_precision_operands_are_named_in_the_error) {
  Linear linear(options());
  RecordingListener listener({.modify = RoutingPlan::get_bit(Gemm::fprop, TensorName::activation)},
                             unchanged);
  EXPECT_THAT(
      [&] {
        train_step(linear, at::ones({16, 32}, at::kBFloat16), /*fp8=*/true);
      },
      ThrowsMessage<UsageError>(
          HasSubstr("fc: fprop got weight quantized and activation in high precision")));
}

TEST(WatchedLinear, disabled_fp8_gemm_runs_in_high_precision) {
  Linear linear(options());
  const at::Tensor x = at::randn({16, 32}, at::kBFloat16);
  const Results bf16 = train_step(linear, x, /*fp8=*/false);
  const Results fp8 = train_step(linear, x, /*fp8=*/true);
  RecordingListener listener({.high_precision = RoutingPlan::get_bit(Gemm::fprop)});
  const Results mixed = train_step(linear, x, /*fp8=*/true);
  EXPECT_TRUE(same_bits(mixed.output, bf16.output));
  EXPECT_TRUE(same_bits(mixed.dgrad, fp8.dgrad));
  EXPECT_TRUE(same_bits(mixed.wgrad, fp8.wgrad));
}

// The backward runs after the recipe's region has ended, as in train_step.
TEST(WatchedLinear, backward_uses_split_accumulator_of_its_forward) {
  using Split = std::map<Gemm, bool>;
  Linear linear(options());
  const at::Tensor x = at::ones({16, 32}, at::kBFloat16).requires_grad_();
  RecordingListener listener({.gemms = 0b111});
  Split seen;
  listener.inspected_gemm = [&](const InspectGemmCall& call) {
    seen[call.gemm] = call.split_accumulator;
  };
  Float8CurrentScaling recipe;
  const auto run = [&] {
    AutocastOptions options;
    options.recipe = std::make_shared<const Float8CurrentScaling>(recipe);
    at::Tensor output;
    {
      const Autocast autocast(options);
      output = linear.forward(x);
    }
    output.backward(at::ones_like(output));
    return std::exchange(seen, {});
  };
  EXPECT_EQ(run(), (Split{{Gemm::fprop, false}, {Gemm::dgrad, true}, {Gemm::wgrad, true}}));
  recipe.fp8_gemm_fprop = {.use_split_accumulator = true};
  recipe.fp8_gemm_dgrad = {.use_split_accumulator = false};
  EXPECT_EQ(run(), (Split{{Gemm::fprop, true}, {Gemm::dgrad, false}, {Gemm::wgrad, true}}));
  recipe.fp8_gemm_wgrad = {.use_split_accumulator = false};
  EXPECT_EQ(run(), (Split{{Gemm::fprop, true}, {Gemm::dgrad, false}, {Gemm::wgrad, false}}));
  train_step(linear, x, /*fp8=*/false);
  EXPECT_EQ(seen, (Split{{Gemm::fprop, true}, {Gemm::dgrad, true}, {Gemm::wgrad, true}}));
}

TEST(WatchedLinear, sleeping_layer_is_not_queried) {
  Linear linear(options());
  const at::Tensor x = at::ones({16, 32}, at::kBFloat16);
  RecordingListener listener({});
  train_step(linear, x, false);
  train_step(linear, x, false);
  EXPECT_EQ(listener.routed, 2) << "nobody put the layer to sleep";
}

TEST(WatchedLinear, backward_after_session_end_makes_no_calls) {
  Linear linear(options());
  at::Tensor output;
  {
    RecordingListener listener({.inspect = kAllTensorBits});
    output = linear.forward(at::ones({16, 32}, at::kBFloat16));
  }
  output.sum().backward();  // would call a listener that no longer exists
  EXPECT_TRUE(linear.named_parameters()["weight"].grad().defined());
}

}  // namespace
}  // namespace telens
