// The quantizers of a layer and their state, and the recipe that chooses them by a function.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "core/quantization/delayed_scaling.h"

namespace telens {

// A user-defined recipe: a function from the role of a tensor to its quantizer.
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

// One quantizer per role.
class LayerQuantizers {
 public:
  // Determines which GEMMs run on quantized operands: those with a quantizer for both operands,
  // unless the recipe overrides them to high precision.
  void choose_gemms(const Recipe& recipe);
  bool quantizes(Gemm gemm) const { return quantized_gemms_[static_cast<std::size_t>(gemm)]; }

  std::shared_ptr<Quantizer>& operator[](TensorRole role) {
    return quantizers_[static_cast<std::size_t>(role)];
  }
  const std::shared_ptr<Quantizer>& operator[](TensorRole role) const {
    return quantizers_[static_cast<std::size_t>(role)];
  }

 private:
  std::array<std::shared_ptr<Quantizer>, kRoles> quantizers_;
  std::array<bool, kAllGemms.size()> quantized_gemms_{};
};

class TELENS_EXPORT LayerQuantization {
 public:
  LayerQuantization() = default;
  // Adds a GEMM to a module.
  explicit LayerQuantization(std::shared_ptr<ModuleWindows> module)
      : delayed_scaling_(std::move(module)) {}

  // Returns the layer's quantizers under a recipe; creates new ones if the recipe or device differs
  // from the previous call. If `collects_amax` is false (evaluation), they do not update the amax
  // history. A recipe must not be modified after its first use. `layer`: the layer's name, for
  // recipes that use it and for messages; "" if it has none. Quantizers of a custom recipe may be
  // nullptr. Throws UsageError if a custom recipe returns different requests for one layer.
  const LayerQuantizers& quantizers(const std::shared_ptr<const Recipe>& recipe,
                                    const at::Device& device, bool collects_amax = true,
                                    std::string_view layer = {});

  // The recipe of the most recent forward; nullptr before the first and after set_extra_state().
  const std::shared_ptr<const Recipe>& recipe() const { return recipe_; }
  // The training quantizers of that recipe; nullptr before the first forward.
  const LayerQuantizers& newest_quantizers() const { return quantizers_; }

  // Returns the delayed scaling that updates histories and scales under `recipe`: the recipe itself
  // or a custom recipe's request. Returns nullptr if there is none. `recipe` must be the most
  // recent one.
  std::shared_ptr<const DelayedScaling> followed(
      const std::shared_ptr<const Recipe>& recipe) const {
    const DelayedScaling* own = recipe->as_delayed_scaling();
    return own != nullptr ? std::shared_ptr<const DelayedScaling>(recipe, own) : requested_;
  }
  // The layer's name when quantizers() last created its quantizers; "" before the first forward.
  const std::string& layer() const { return layer_; }

  // Like followed(recipe()), computed once by quantizers().
  const std::shared_ptr<const DelayedScaling>& followed() const { return followed_; }

  // The amax history and scales of delayed scaling.
  DelayedScalingState& delayed_scaling() { return delayed_scaling_; }

  // Makes the quantizer of a role reduce its amax over `group` (Quantizer::reduce_amax_over), from
  // the next quantizers() on.
  void reduce_amaxes_over(TensorRole role, ProcessGroupPtr group);

  // Sets the kind that a custom recipe receives (default "linear"). `type` must be static.
  void set_module_type(std::string_view type) { module_type_ = type; }

  // The entry of state_dict under _extra_state (core/quantization/extra_state.h).
  at::Tensor extra_state() const;
  // Throws UsageError on bytes that extra_state() did not write. `source`: the checkpoint's entry
  // and the GEMM, for messages.
  void set_extra_state(const at::Tensor& bytes, const std::string& source = "_extra_state");

 private:
  void make_quantizers(const std::shared_ptr<const Recipe>& recipe, const at::Device& device,
                       std::string_view layer);
  using Answers = std::array<CustomRecipe::Answer, kRoles>;
  Answers ask(const CustomRecipe& recipe, std::string_view layer) const;

  std::shared_ptr<const Recipe> recipe_;
  std::shared_ptr<const DelayedScaling> requested_;  // request of recipe_; nullptr if none
  std::shared_ptr<const DelayedScaling> followed_;   // followed(recipe_)
  LayerQuantizers quantizers_;
  LayerQuantizers evaluation_quantizers_;
  std::array<ProcessGroupPtr, kRoles> amax_groups_;
  DelayedScalingState delayed_scaling_;
  at::Device device_ = at::kCPU;
  std::string_view module_type_ = "linear";
  std::string layer_;
};

}  // namespace telens
