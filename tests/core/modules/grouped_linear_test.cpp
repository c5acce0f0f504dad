// GroupedLinear equals separate Linears bit for bit, with every recipe and with parts without rows.
#include "core/modules/linear/grouped_linear.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/gemm/gemm.h"
#include "core/modules/linear/linear.h"
#include "core/modules/module/module.h"
#include "core/quantization/autocast.h"
#include "core/quantization/block_scaling.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"
#include "tests/core/modules/recording_listener.h"
#include "tests/core/modules/same_tensor.h"

namespace telens {
namespace {

using test::RecordingListener;
using test::same_bits;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kIn = 64;
constexpr std::int64_t kOut = 32;
const std::vector<std::int64_t> kSplits{32, 0, 64};
constexpr std::int64_t kRows = 96;

GroupedLinearOptions grouped_options(std::string name = "moe") {
  GroupedLinearOptions options{.num_gemms = 3, .in_features = kIn, .out_features = kOut};
  options.parameters.params_dtype = at::kBFloat16;
  options.parameters.device = at::kCPU;
  options.name = std::move(name);
  return options;
}

AutocastOptions autocast_options(std::shared_ptr<const Recipe> recipe) {
  AutocastOptions options;
  options.enabled = recipe != nullptr;
  options.recipe = std::move(recipe);
  return options;
}

// No recipe, and every recipe.
std::vector<std::shared_ptr<const Recipe>> recipes() {
  auto nvfp4 = std::make_shared<NVFP4BlockScaling>();
  nvfp4->disable_stochastic_rounding = true;  // the grouped layer may draw other random numbers
  return {nullptr,
          std::make_shared<const DelayedScaling>(),
          std::make_shared<const Float8CurrentScaling>(),
          std::make_shared<const MXFP8BlockScaling>(),
          std::make_shared<const Float8BlockScaling>(),
          nvfp4};
}

// A grouped layer, and separate Linears with the same weights and biases.
class GroupedLinearTest : public testing::Test {
 protected:
  GroupedLinearTest() {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : grouped_.parameters()) parameter.normal_();
    for (std::size_t i = 0; i < kSplits.size(); ++i) {
      LinearOptions options{.in_features = kIn, .out_features = kOut};
      options.parameters = grouped_options().parameters;
      auto& linear = separate_.emplace_back(std::make_shared<Linear>(options));
      for (const char* name : {"weight", "bias"}) {
        linear->named_parameters()[name].copy_(parameter(name, i));
      }
    }
  }

  at::Tensor parameter(std::string name, std::size_t i) {
    return grouped_.named_parameters()[name + std::to_string(i)];
  }

  at::Tensor run(const std::shared_ptr<const Recipe>& recipe, const at::Tensor& x,
                 std::vector<std::int64_t> splits = kSplits, std::optional<bool> first = {}) {
    Autocast autocast(autocast_options(recipe));
    return grouped_.forward({x, std::move(splits), first})[0];
  }

  GroupedLinear grouped_{grouped_options()};
  std::vector<std::shared_ptr<Linear>> separate_;
  at::Tensor x_ = at::randn({kRows, kIn}, at::kBFloat16);
  at::Tensor grad_ = at::randn({kRows, kOut}, at::kBFloat16);
};

TEST_F(GroupedLinearTest, equals_separate_linears_under_every_recipe) {
  for (const auto& recipe : recipes()) {
    SCOPED_TRACE(recipe ? std::string(recipe->name()) : "high precision");
    grouped_.zero_grad();
    for (int step = 0; step < 2; ++step) {  // the second with the scales of the first
      const at::Tensor x = x_.clone().requires_grad_();
      const at::Tensor output = run(recipe, x);
      output.backward(grad_);
      std::vector<at::Tensor> outputs, dgrads;
      std::int64_t row = 0;
      for (std::size_t i = 0; i < kSplits.size(); ++i) {
        const at::Tensor part = x_.narrow(0, row, kSplits[i]).clone().requires_grad_();
        if (step == 0) separate_[i]->zero_grad();
        at::Tensor own;
        {
          Autocast autocast(autocast_options(recipe));
          own = separate_[i]->forward(part);
        }
        own.backward(grad_.narrow(0, row, kSplits[i]));
        outputs.push_back(own);
        dgrads.push_back(part.grad());
        row += kSplits[i];
        for (const char* name : {"weight", "bias"}) {
          EXPECT_TRUE(
              same_bits(parameter(name, i).grad(), separate_[i]->named_parameters()[name].grad()))
              << name << i << " in step " << step;
        }
      }
      EXPECT_TRUE(same_bits(output, at::cat(outputs)));
      EXPECT_TRUE(same_bits(x.grad(), at::cat(dgrads)));
    }
  }
}

TEST_F(GroupedLinearTest, empty_split_has_zero_gradients_and_no_gemm) {
  for (const auto& recipe : recipes()) {
    SCOPED_TRACE(recipe ? std::string(recipe->name()) : "high precision");
    grouped_.zero_grad();
    const GemmCounts before = gemm_counts();
    run(recipe, x_.clone().requires_grad_()).backward(grad_);
    const GemmCounts after = gemm_counts();
    EXPECT_EQ(after.quantized - before.quantized, recipe ? 6U : 0U);
    EXPECT_EQ(after.high_precision - before.high_precision, recipe ? 0U : 6U);
    EXPECT_TRUE(same_bits(parameter("weight", 1).grad(), at::zeros({kOut, kIn}, at::kBFloat16)));
    EXPECT_TRUE(same_bits(parameter("bias", 1).grad(), at::zeros({kOut}, at::kBFloat16)));
    EXPECT_FALSE(parameter("weight", 0).grad().eq(0).all().item<bool>());
  }
}

TEST_F(GroupedLinearTest, features_see_gemms_with_rows) {
  RecordingListener listener({.inspect = RoutingPlan::get_bit(TensorName::weight)});
  run(recipes()[2], x_);
  EXPECT_EQ(listener.routed, 2);
  EXPECT_THAT(listener.calls, ElementsAre("inspect weight", "inspect weight"));
  run(recipes()[2], at::empty({0, kIn}, at::kBFloat16), {0, 0, 0});
  EXPECT_EQ(listener.routed, 2);
}

TEST_F(GroupedLinearTest, caches_weights_although_some_splits_are_empty) {
  const auto recipe = recipes()[2];
  const at::Tensor before = run(recipe, x_, {32, 32, 32}, true).clone();
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : grouped_.parameters()) parameter.mul_(2);
  run(recipe, x_, kSplits, true);  // the next minibatch
  const at::Tensor after = run(recipe, x_, {32, 32, 32}, false);
  EXPECT_TRUE(same_bits(after, before * 2)) << "the weight of an empty split was an old one";
}

TEST_F(GroupedLinearTest, flattens_inputs_with_more_dimensions) {
  const at::Tensor output = run(nullptr, x_.view({4, 24, kIn}));
  EXPECT_EQ(output.sizes(), at::IntArrayRef({4, 24, kOut}));
  EXPECT_TRUE(same_bits(output.view({kRows, kOut}), run(nullptr, x_)));
}

TEST_F(GroupedLinearTest, return_bias_returns_biases_without_adding) {
  GroupedLinearOptions options = grouped_options();
  options.return_bias = true;
  GroupedLinear returning(options);
  for (std::size_t i = 0; i < kSplits.size(); ++i) {
    for (const char* name : {"weight", "bias"}) {
      returning.set_tensor(name + std::to_string(i), parameter(name, i));
    }
  }
  const Outputs outputs = returning.forward({x_, kSplits});
  ASSERT_EQ(outputs.size(), 4U);
  EXPECT_TRUE(outputs[2].is_same(parameter("bias", 1)));
  EXPECT_TRUE(same_bits(outputs[0].narrow(0, 0, 32),
                        at::linear(x_.narrow(0, 0, 32), parameter("weight", 0))));
}

TEST_F(GroupedLinearTest, state_contains_every_gemm_amax_history) {
  const auto recipe = recipes()[1];
  run(recipe, x_.clone().requires_grad_()).backward(grad_);
  GroupedLinear other(grouped_options());
  load_state_dict(other, state_dict(grouped_));
  EXPECT_TRUE(same_bits(other.extra_state(), grouped_.extra_state()));
  Autocast autocast(autocast_options(recipe));
  EXPECT_TRUE(
      same_bits(other.forward({x_, {32, 32, 32}})[0], grouped_.forward({x_, {32, 32, 32}})[0]));
}

TEST_F(GroupedLinearTest, rejects_state_of_another_number_of_gemms) {
  run(recipes()[1], x_);
  GroupedLinearOptions options = grouped_options("small");
  options.num_gemms = 2;
  GroupedLinear other(options);
  EXPECT_THAT([&] { other.set_extra_state(grouped_.extra_state()); },
              ThrowsMessage<UsageError>(
                  HasSubstr("small: _extra_state holds the states of 3 layers; expected 2, from "
                            ".gemm_0 to .gemm_1: the entry belongs to a different module")));
}

TEST_F(GroupedLinearTest, rejects_invalid_splits) {
  const auto running = [&](std::vector<std::int64_t> splits) {
    return [this, splits] { run(nullptr, x_, splits); };
  };
  EXPECT_THAT(running({48, 48}), ThrowsMessage<ShapeError>(HasSubstr(
                                     "moe: m_splits has 2 numbers; expected one for each of 3")));
  EXPECT_THAT(running({64, -16, 48}),
              ThrowsMessage<ShapeError>(
                  HasSubstr("moe: m_splits[1] is -16; expected a number of rows, 0 or more")));
  EXPECT_THAT(running({32, 32, 16}),
              ThrowsMessage<ShapeError>(HasSubstr(
                  "moe: m_splits [32, 32, 16] are 80 rows in all; inp of shape [96, 64] has 96")));
  EXPECT_THAT([&] { run(nullptr, x_.narrow(1, 0, 48)); },
              ThrowsMessage<ShapeError>(
                  HasSubstr("moe: inp has shape [96, 48]; expected [sum(m_splits), 64]")));
  GroupedLinear unnamed(grouped_options(""));
  EXPECT_THAT(
      [&] {
        unnamed.forward({x_, {}});
      },
      ThrowsMessage<ShapeError>(HasSubstr("GroupedLinear: m_splits has 0 numbers")));
}

TEST(GroupedLinearOptions, rejects_empty_sizes) {
  GroupedLinearOptions options = grouped_options();
  options.num_gemms = -1;
  EXPECT_THAT([&] { GroupedLinear{options}; },
              ThrowsMessage<UsageError>(HasSubstr(
                  "GroupedLinear: num_gemms is -1, in_features 64 and out_features 32; expected at "
                  "least 1")));
}

}  // namespace
}  // namespace telens
