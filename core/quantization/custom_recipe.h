// A user-defined recipe: a function from the role of a tensor to its quantizer.
#pragma once

#include <functional>
#include <memory>
#include <variant>

#include "core/quantization/delayed_scaling.h"

namespace telens {

struct TELENS_EXPORT CustomRecipe final : Recipe {
  // Either a quantizer, which each tensor copies because layers set the orientations of their
  // quantizers; nullptr if the GEMMs of this tensor run in high precision. Or a request: the layer
  // keeps a history and a scale for this tensor under the requested recipe. All requests of a layer
  // must be equal (LayerQuantization::followed).
  using Answer = std::variant<std::shared_ptr<Quantizer>, std::shared_ptr<const DelayedScaling>>;
  // Called for each tensor in the layer's first forward under the recipe.
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
