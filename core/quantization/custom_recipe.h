// A recipe of one's own: a function from the role of a tensor to its quantizer.
#pragma once

#include <functional>
#include <memory>
#include <variant>

#include "core/quantization/delayed_scaling.h"

namespace telens {

struct TELENS_EXPORT CustomRecipe final : Recipe {
  // A quantizer, of which each tensor gets a copy of its own, since layers tell their quantizers
  // which orientations to make; nullptr: the GEMMs of this tensor run in high precision. Or a
  // request: the layer keeps a history and a scale for this tensor by that recipe. All requests of
  // one layer are for the same recipe (LayerQuantization::followed).
  using Answer = std::variant<std::shared_ptr<Quantizer>, std::shared_ptr<const DelayedScaling>>;
  // Called for every tensor of every layer when the layer meets the recipe.
  using Factory = std::function<Answer(const QuantizerRole& role)>;
  Factory qfactory;

  std::string_view name() const override { return "custom"; }
  std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                            DelayedScalingState* state) const override {
    return make_quantizer_for({role, "linear", {}}, state);
  }
  std::shared_ptr<Quantizer> make_quantizer_for(const QuantizerRole& role,
                                                DelayedScalingState* state) const override {
    return make_answered(qfactory(role), role.tensor, state);
  }
  static std::shared_ptr<Quantizer> make_answered(const Answer& answer, TensorRole role,
                                                  DelayedScalingState* state) {
    if (const auto* request = std::get_if<std::shared_ptr<const DelayedScaling>>(&answer)) {
      return (*request)->make_quantizer(role, state);
    }
    const auto& quantizer = std::get<std::shared_ptr<Quantizer>>(answer);
    return quantizer ? quantizer->copy() : nullptr;
  }
};

}  // namespace telens
