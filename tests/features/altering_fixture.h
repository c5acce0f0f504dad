// A layer whose forward and backward run with features that alter its tensors.
#pragma once

#include "tests/features/training_fixture.h"
#include "tests/hooks/session_fixture.h"

namespace telens::testing {

// One forward and backward of a layer. Its input needs a gradient.
struct Pass {
  at::Tensor output, input_grad, weight_grad;
};

class AlteringTest : public SessionTest {
 protected:
  // recipe: nullptr runs in BF16.
  Pass run(const std::shared_ptr<const Recipe>& recipe, std::optional<bool> first = {},
           bool calibrating = false) {
    input.mutable_grad() = at::Tensor();
    linear().weight().mutable_grad() = at::Tensor();
    Pass pass;
    {
      std::optional<Autocast> autocast;
      if (recipe) {
        AutocastOptions options;
        options.recipe = recipe;
        options.enabled = !calibrating;
        options.calibrating = calibrating;
        autocast.emplace(options);
      }
      pass.output = linear().layer->forward({input, first, false, false})[0];
    }
    pass.output.backward(gradient);
    pass.input_grad = input.grad().clone();
    pass.weight_grad = linear().weight().grad().clone();
    return pass;
  }

  struct Layer {
    std::shared_ptr<Linear> layer;
    // By value: named_parameters() returns a temporary.
    at::Tensor weight() const { return layer->named_parameters()["weight"]; }
  };
  Layer& linear() { return layer_; }

  void begin(const std::string& yaml) { debug::initialize(options(section(yaml))); }

  at::Tensor input = (at::manual_seed(5),
                      at::randn({SmallTraining::kTokens, SmallTraining::kIn}).to(at::kBFloat16))
                         .set_requires_grad(true);
  at::Tensor gradient =
      at::randn({SmallTraining::kTokens, SmallTraining::kHidden}).to(at::kBFloat16);

 private:
  Layer layer_{SmallTraining(nullptr).first};
};

}  // namespace telens::testing
