// Trains a small model of two Linear layers, to test what sessions see and change.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/modules/linear/linear.h"
#include "core/quantization/autocast.h"
#include "core/quantization/block_scaling.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"
#include "hooks/debug.h"

namespace telens::testing {

inline std::shared_ptr<const Recipe> delayed_scaling() {
  auto recipe = std::make_shared<DelayedScaling>();
  recipe->amax_history_len = 4;
  return recipe;
}
inline std::shared_ptr<const Recipe> current_scaling() {
  return std::make_shared<Float8CurrentScaling>();
}
inline std::shared_ptr<const Recipe> mxfp8_scaling() {
  return std::make_shared<MXFP8BlockScaling>();
}
inline std::shared_ptr<const Recipe> block_scaling() {
  return std::make_shared<Float8BlockScaling>();
}
// Gradients are rounded stochastically: if a feature draws a random number, the run changes.
inline std::shared_ptr<const Recipe> nvfp4_scaling() {
  return std::make_shared<NVFP4BlockScaling>();
}

// Deterministic: equal arguments give equal bits.
class SmallTraining {
 public:
  static constexpr std::int64_t kTokens = 32, kIn = 64, kHidden = 128;

  // recipe: nullptr trains in BF16.
  explicit SmallTraining(std::shared_ptr<const Recipe> recipe, int micro_batches = 2)
      : recipe_(std::move(recipe)), micro_batches_(micro_batches) {
    at::manual_seed(7);
    first = make("model.0.fc1", kIn, kHidden);
    second = make("model.0.fc2", kHidden, kIn);
  }

  // One optimizer step over the micro-batches; calls debug.step(). Returns the loss.
  float step() {
    for (at::Tensor& parameter : parameters()) parameter.mutable_grad() = at::Tensor();
    float total = 0;
    for (int i = 0; i < micro_batches_; ++i) total += forward_backward(i == 0);
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : parameters()) parameter.sub_(parameter.grad(), 0.05);
    }
    debug::step(total);
    return total;
  }

  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> all = first->parameters();
    for (at::Tensor& each : second->parameters()) all.push_back(each);
    return all;
  }

  std::shared_ptr<Linear> first, second;

 private:
  static std::shared_ptr<Linear> make(const std::string& name, std::int64_t in, std::int64_t out) {
    LinearOptions options;
    options.in_features = in;
    options.out_features = out;
    options.parameters.params_dtype = at::kBFloat16;
    options.parameters.device = at::Device(at::kCPU);
    options.name = name;
    return std::make_shared<Linear>(options);
  }

  float forward_backward(bool is_first_microbatch) {
    const at::Tensor x = at::randn({kTokens, kIn}).to(at::kBFloat16);
    const at::Tensor target = at::randn({kTokens, kIn}).to(at::kBFloat16);
    at::Tensor y;
    {
      std::optional<Autocast> autocast;
      if (recipe_) {
        AutocastOptions autocast_options;
        autocast_options.recipe = recipe_;
        autocast.emplace(autocast_options);
      }
      const at::Tensor hidden = first->forward({x, is_first_microbatch, false, false})[0];
      y = second->forward({hidden.relu(), is_first_microbatch, false, false})[0];
    }
    const at::Tensor loss = (y - target).to(at::kFloat).pow(2).mean();
    loss.backward();
    return loss.item<float>();
  }

  std::shared_ptr<const Recipe> recipe_;
  int micro_batches_;
};

}  // namespace telens::testing
