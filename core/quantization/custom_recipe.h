// A recipe of one's own: a function from the role of a tensor to its quantizer.
#pragma once

#include <functional>
#include <memory>

#include "core/quantization/recipe.h"

namespace telens {

struct TELENS_EXPORT CustomRecipe final : Recipe {
  // Called for every tensor of every layer when the layer meets the recipe. nullptr: the GEMMs of
  // this tensor run in high precision. Each tensor gets a copy of its own, since layers tell their
  // quantizers which orientations to make.
  using Factory = std::function<std::shared_ptr<Quantizer>(const QuantizerRole& role)>;
  Factory qfactory;

  std::string_view name() const override { return "custom"; }
  std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                            DelayedScalingState* state) const override {
    return make_quantizer_for({role, "linear", {}}, state);
  }
  std::shared_ptr<Quantizer> make_quantizer_for(const QuantizerRole& role,
                                                DelayedScalingState*) const override {
    const std::shared_ptr<Quantizer> quantizer = qfactory(role);
    return quantizer ? quantizer->copy() : nullptr;
  }
};

}  // namespace telens
