// Delayed scaling in a training loop: when amax histories and scales are updated, and that a
// resumed run equals an uninterrupted one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/modules/linear/linear.h"
#include "core/modules/shared/recomputation.h"
#include "core/ops/scaling.h"
#include "core/quantization/autocast.h"
#include "core/quantization/extra_state.h"

namespace telens {
namespace {

std::shared_ptr<const DelayedScaling> short_history() {
  auto recipe = std::make_shared<DelayedScaling>();
  recipe->amax_history_len = 4;
  return recipe;
}

struct Model {
  explicit Model(std::int64_t seed = 1) {
    at::manual_seed(static_cast<std::uint64_t>(seed));
    LinearOptions options;
    options.in_features = 32;
    options.out_features = 32;
    options.parameters.params_dtype = at::kBFloat16;
    options.parameters.device = at::kCPU;
    first = std::make_shared<Linear>(options);
    second = std::make_shared<Linear>(options);
  }

  at::Tensor run(const at::Tensor& x, const std::shared_ptr<const Recipe>& recipe) {
    Autocast autocast({.recipe = recipe});
    return second->forward(first->forward(x));
  }

  std::shared_ptr<Linear> first;
  std::shared_ptr<Linear> second;
};

at::Tensor batch(int step) {
  at::manual_seed(static_cast<std::uint64_t>(100 + step));
  return at::randn({16, 32}, at::kBFloat16) * (1 + step);
}

at::Tensor train(Model& model, int from, int to, const std::shared_ptr<const Recipe>& recipe) {
  at::Tensor losses = at::zeros({to - from});
  for (int step = from; step < to; ++step) {
    const at::Tensor loss = model.run(batch(step), recipe).to(at::kFloat).square().mean();
    loss.backward();
    losses[step - from] = loss.detach();
    const at::NoGradGuard no_grad;
    for (const auto& module : {model.first, model.second}) {
      for (at::Tensor& parameter : module->parameters()) {
        parameter.sub_(parameter.grad() * 0.01);
        parameter.mutable_grad().reset();
      }
    }
  }
  return losses;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.contiguous().view(at::kByte).equal(b.contiguous().view(at::kByte));
}

TEST(DelayedScaling, evaluation_changes_no_state) {
  Model model;
  const auto recipe = short_history();
  train(model, 0, 1, recipe);
  const at::Tensor trained = model.first->extra_state();
  {
    const at::NoGradGuard no_grad;
    model.run(batch(7), recipe);
  }
  EXPECT_TRUE(same_bits(model.first->extra_state(), trained));
  {
    Autocast region({.recipe = recipe});  // the region ends with gradients enabled
    const at::NoGradGuard no_grad;
    model.run(batch(7), recipe);
  }
  EXPECT_TRUE(same_bits(model.first->extra_state(), trained));
  train(model, 1, 2, recipe);
  EXPECT_FALSE(same_bits(model.first->extra_state(), trained));
}

TEST(DelayedScaling, gradient_scales_update_once_per_backward) {
  Model model;
  const auto recipe = short_history();
  train(model, 0, 1, recipe);
  const at::Tensor once = model.first->extra_state();
  const at::Tensor loss = model.run(batch(0), recipe).square().mean();
  const at::Tensor after_forward = model.first->extra_state();
  EXPECT_FALSE(same_bits(once, after_forward)) << "the forward's exit updated nothing";
  loss.backward();
  EXPECT_FALSE(same_bits(after_forward, model.first->extra_state()))
      << "the backward's end updated nothing";
  // two backward passes: two rows of the history, no gap
  for (const auto& layer : {model.first, model.second}) {
    const at::Tensor rows =
        state_from_bytes(layer->extra_state()).window(/*backward=*/true).amax_history.select(1, 0);
    EXPECT_EQ(rows[0].item<float>(), 0.0F);
    EXPECT_GT(rows[1].item<float>(), 0.0F);
    EXPECT_GT(rows[2].item<float>(), 0.0F);
    EXPECT_EQ(rows[3].item<float>(), 0.0F);
  }
}

TEST(DelayedScaling, resumed_run_equals_an_uninterrupted_run) {
  const auto recipe = short_history();
  Model uninterrupted;
  const at::Tensor expected = train(uninterrupted, 0, 8, recipe);

  Model interrupted;
  const at::Tensor head = train(interrupted, 0, 4, recipe);
  Model resumed(/*seed=*/99);
  const auto move = [](Linear& from, Linear& to) {
    const at::NoGradGuard no_grad;
    for (const auto& item : from.named_parameters()) {
      to.named_parameters()[item.key()].copy_(item.value());
    }
    to.set_extra_state(from.extra_state());
  };
  move(*interrupted.first, *resumed.first);
  move(*interrupted.second, *resumed.second);
  const at::Tensor tail = train(resumed, 4, 8, recipe);
  EXPECT_TRUE(same_bits(at::cat({head, tail}), expected));
}

TEST(DelayedScaling, exception_in_a_region_changes_no_state) {
  const auto recipe = short_history();
  Model model;
  train(model, 0, 1, recipe);
  const auto scale = [&] {
    return state_from_bytes(model.first->extra_state()).window(/*backward=*/false).scale;
  };
  const at::Tensor before = scale();
  const auto break_off = [&] {
    const Autocast region({.recipe = recipe});
    model.run(batch(7), recipe);
    throw UsageError("the block's own");
  };
  EXPECT_THROW(break_off(), UsageError);
  EXPECT_TRUE(scale().equal(before));
  EXPECT_EQ(current_autocast(), nullptr);
  model.run(batch(7), recipe);
  EXPECT_FALSE(scale().equal(before));
}

TEST(DelayedScaling, rejects_foreign_extra_state) {
  Model model;
  EXPECT_THROW(model.first->set_extra_state(at::ones({100}, at::kByte)), UsageError);
  EXPECT_THROW(model.first->set_extra_state(at::ones({100})), UsageError);
  train(model, 0, 1, short_history());
  const at::Tensor bytes = model.first->extra_state();
  EXPECT_THROW(model.first->set_extra_state(bytes.narrow(0, 0, bytes.numel() - 1)), UsageError);
  model.first->set_extra_state(bytes);
  EXPECT_TRUE(same_bits(model.first->extra_state(), bytes));
}

TEST(DelayedScaling, recomputation_reuses_scales_and_records_nothing) {
  const auto recipe = short_history();
  Model model;
  train(model, 0, 2, recipe);
  const auto tape = std::make_shared<RecomputationTape>();
  const at::Tensor x = batch(2);
  at::Tensor first;
  {
    Autocast autocast({.recipe = recipe});
    const RecomputationScope scope(tape, RecomputationScope::Mode::record);
    first = model.second->forward(model.first->forward(x));
  }  // the scales move here
  const at::Tensor state = model.first->extra_state();
  const RecomputationScope scope(tape, RecomputationScope::Mode::replay);
  const at::Tensor again = model.second->forward(model.first->forward(x));
  EXPECT_TRUE(same_bits(first, again));
  EXPECT_TRUE(same_bits(model.first->extra_state(), state));
}

TEST(DelayedScaling, calibration_collects_amaxes_in_high_precision) {
  Model model;
  Model plain;
  const auto recipe = short_history();
  const at::Tensor x = batch(0);
  at::Tensor calibrated;
  {
    Autocast autocast({.enabled = false, .calibrating = true, .recipe = recipe});
    calibrated = model.second->forward(model.first->forward(x));
  }
  EXPECT_TRUE(same_bits(calibrated, plain.second->forward(plain.first->forward(x))));
  const at::Tensor collected = state_from_bytes(model.first->extra_state())
                                   .window(/*backward=*/false)
                                   .amax_history[1];  // the region's end began a new row
  EXPECT_EQ(collected[0].item<float>(), x.abs().max().item<float>());
}

at::Tensor updated(float amax, float old_scale, std::int64_t margin, bool power_of_two) {
  at::Tensor scale = at::full({1}, old_scale);
  ops::update_scale(at::full({1}, amax), scale, at::full({1}, 448.0F), margin, power_of_two);
  return scale;
}

TEST(ScaleFormula, matches_transformer_engine_for_special_values) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(updated(2.0F, 1, 0, false).item<float>(), 224.0F);
  EXPECT_EQ(updated(2.0F, 1, 3, false).item<float>(), 28.0F);  // margin 3: divided by 8
  EXPECT_EQ(updated(2.0F, 1, 0, true).item<float>(), 128.0F);  // the power of two below 224
  EXPECT_EQ(updated(0.0F, 7, 0, false).item<float>(), 7.0F);
  EXPECT_EQ(updated(kNan, 7, 0, false).item<float>(), 7.0F);
  EXPECT_EQ(updated(kInfinity, 7, 0, false).item<float>(), 7.0F);
  EXPECT_EQ(updated(0x1p-149F, 7, 0, false).item<float>(), std::numeric_limits<float>::max());
}

TEST(ScaleFormula, amax_of_history_is_max_or_newest_and_propagates_nan) {
  const at::Tensor history = at::tensor({1.0F, 9.0F, 5.0F, 2.0F}).view({2, 2});
  EXPECT_TRUE(ops::amax_of_history(history, "max").equal(at::tensor({5.0F, 9.0F})));
  EXPECT_TRUE(ops::amax_of_history(history, "most_recent").equal(at::tensor({1.0F, 9.0F})));
  history[1][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(ops::amax_of_history(history, "max")[0].item<float>()));
  EXPECT_THROW(ops::amax_of_history(history, "mean"), UsageError);
  ops::advance_history(history);
  EXPECT_TRUE(history[0].equal(at::zeros({2})));
  EXPECT_TRUE(history[1].equal(at::tensor({1.0F, 9.0F})));
}

}  // namespace
}  // namespace telens
