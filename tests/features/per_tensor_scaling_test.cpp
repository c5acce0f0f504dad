// The effect of PerTensorScaling in a real layer.
#include <gmock/gmock.h>

#include "core/gemm/gemm.h"
#include "tests/features/altering_fixture.h"

namespace telens {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Pass;

constexpr const char* kEverything =
    "PerTensorScaling: {enabled: True, gemms: [fprop, dgrad, wgrad], "
    "tensors: [activation, weight, gradient]}\n";

class PerTensorScalingTest : public testing::AlteringTest {
 protected:
  void forget() { linear().layer->set_extra_state(fresh_); }

  void expect_error(const std::shared_ptr<const Recipe>& recipe, const std::string& reason,
                    bool calibrating = false) {
    try {
      run(recipe, {}, calibrating);
      FAIL() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(
          error.what(),
          AllOf(HasSubstr("'PerTensorScaling' of section 'section' in layer 'model.0.fc1'"),
                HasSubstr("activation of fprop"),
                HasSubstr("only inside fp8_autocast with DelayedScaling"), HasSubstr(reason)));
    }
  }

 private:
  at::Tensor fresh_ = linear().layer->extra_state();
};

void expect_same(const Pass& left, const Pass& right) {
  EXPECT_TRUE(at::equal(left.output, right.output));
  EXPECT_TRUE(at::equal(left.input_grad, right.input_grad));
  EXPECT_TRUE(at::equal(left.weight_grad, right.weight_grad));
}

TEST_F(PerTensorScalingTest, on_all_tensors_matches_current_scaling_bit_for_bit) {
  const Pass current = run(testing::current_scaling());
  const Pass delayed = run(testing::delayed_scaling());
  EXPECT_FALSE(at::equal(current.output, delayed.output));
  forget();
  begin(kEverything);
  const GemmCounts before = gemm_counts();
  expect_same(run(testing::delayed_scaling()), current);
  EXPECT_EQ(gemm_counts().quantized - before.quantized, 3U);
  EXPECT_EQ(gemm_counts().high_precision, before.high_precision);
}

TEST_F(PerTensorScalingTest, leaves_other_tensors_and_gemms_to_delayed_scaling) {
  const Pass delayed = run(testing::delayed_scaling());
  forget();
  begin("PerTensorScaling: {enabled: True, gemms: [fprop], tensors: [activation]}\n");
  const Pass pass = run(testing::delayed_scaling());
  EXPECT_TRUE(at::equal(pass.input_grad, delayed.input_grad));
  EXPECT_TRUE(at::equal(pass.weight_grad, delayed.weight_grad));
  const at::NoGradGuard no_grad;
  const Operand x = CurrentScalingQuantizer(FormatId::e4m3).quantize(input);
  const Operand w = DelayedScalingQuantizer(FormatId::e4m3, at::ones({1}), at::zeros({1}))
                        .quantize(linear().weight());
  const at::Tensor bias = linear().layer->named_parameters()["bias"];
  const std::string layer = "reference";
  EXPECT_TRUE(at::equal(pass.output, run_gemm({.gemm = Gemm::fprop,
                                               .a = x,
                                               .b = w,
                                               .bias = bias,
                                               .out_dtype = at::kBFloat16,
                                               .layer = layer})
                                         .output));
}

TEST_F(PerTensorScalingTest, keeps_the_amax_history_up) {
  run(testing::delayed_scaling());
  const at::Tensor expected = linear().layer->extra_state();
  forget();
  EXPECT_FALSE(at::equal(linear().layer->extra_state(), expected));
  begin(kEverything);
  run(testing::delayed_scaling());
  EXPECT_TRUE(at::equal(linear().layer->extra_state(), expected));
}

TEST_F(PerTensorScalingTest, delayed_scaling_continues_after_its_schedule) {
  std::vector<Pass> delayed;
  for (int i = 0; i < 4; ++i) delayed.push_back(run(testing::delayed_scaling()));
  const Pass current = run(testing::current_scaling());
  forget();
  begin(
      "PerTensorScaling: {enabled: True, gemms: [fprop, dgrad, wgrad], end_step: 1, "
      "tensors: [activation, weight, gradient]}\n");
  for (int i = 0; i < 4; ++i) {
    expect_same(run(testing::delayed_scaling()), i < 2 ? current : delayed[i]);
    debug::step();
  }
}

TEST_F(PerTensorScalingTest, fills_the_weight_cache) {
  const at::Tensor weight = linear().weight().detach().clone();
  const auto train = [&](const std::shared_ptr<const Recipe>& recipe) {
    std::vector<Pass> passes;
    for (const int factor : {1, 3, 2}) {
      {
        const at::NoGradGuard no_grad;
        linear().weight().copy_(weight * factor);
      }
      for (const bool first : {true, false}) passes.push_back(run(recipe, first));
      debug::step();
    }
    return passes;
  };
  const std::vector<Pass> expected = train(testing::current_scaling());
  begin(kEverything);
  const std::vector<Pass> passes = train(testing::delayed_scaling());
  for (std::size_t i = 0; i < expected.size(); ++i) expect_same(passes[i], expected[i]);
  EXPECT_FALSE(at::equal(passes[0].output, passes[2].output));
}

TEST_F(PerTensorScalingTest, other_recipes_are_an_error_that_names_the_recipe) {
  begin("PerTensorScaling: {enabled: True, gemms: [fprop], tensors: [activation]}\n");
  expect_error(nullptr, "no fp8_autocast is on");
  expect_error(testing::current_scaling(), "the recipe that runs has current scaling");
  expect_error(testing::mxfp8_scaling(), "the recipe that runs has MXFP8 scaling");
  expect_error(testing::delayed_scaling(), "no fp8_autocast is on", /*calibrating=*/true);
}

TEST_F(PerTensorScalingTest, outputs_are_rejected_at_load) {
  try {
    begin("PerTensorScaling: {enabled: True, gemms: [fprop], tensors: [output]}\n");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("output"), HasSubstr("'activation', 'weight', 'gradient'")));
  }
}

}  // namespace
}  // namespace telens
