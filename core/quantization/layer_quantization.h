// The quantizers of one layer, and what they remember from one iteration to the next.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "core/quantization/custom_recipe.h"
#include "core/quantization/delayed_scaling.h"

namespace telens {

// One quantizer a role.
class LayerQuantizers {
 public:
  // Settles which GEMMs take quantized operands: those of which both have a quantizer, unless the
  // recipe leaves them in high precision.
  void settle_gemms(const Recipe& recipe);
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
  // For one more GEMM of a module.
  explicit LayerQuantization(std::shared_ptr<ModuleWindows> module)
      : delayed_scaling_(std::move(module)) {}

  // The layer's quantizers under a recipe, made anew when recipe or device are others than last
  // time. With `collects_amax` false (evaluation) they leave no trace in the amax history. A recipe
  // that is changed in place after its first use is not noticed. `layer`: the layer's name, for a
  // recipe that asks for it. Quantizers of a custom recipe may be nullptr; UsageError where its
  // requests for one layer differ.
  const LayerQuantizers& quantizers(const std::shared_ptr<const Recipe>& recipe,
                                    const at::Device& device, bool collects_amax = true,
                                    std::string_view layer = {});

  // The recipe of the newest forward under one; nullptr before any and after set_extra_state().
  const std::shared_ptr<const Recipe>& recipe() const { return recipe_; }
  // Those of that recipe, as training uses them; nullptr before any.
  const LayerQuantizers& newest_quantizers() const { return quantizers_; }

  // The delayed scaling that histories and scales follow under `recipe`, the layer's newest: the
  // recipe itself, or what it requested. nullptr: none.
  std::shared_ptr<const DelayedScaling> followed(
      const std::shared_ptr<const Recipe>& recipe) const {
    const DelayedScaling* own = recipe->as_delayed_scaling();
    return own != nullptr ? std::shared_ptr<const DelayedScaling>(recipe, own) : requested_;
  }
  // The same of the newest quantizers(), which settled it; it may outlive the next ones.
  const std::shared_ptr<const DelayedScaling>& followed() const { return followed_; }

  // Amax history and scales, for a recipe that keeps them.
  DelayedScalingState& delayed_scaling() { return delayed_scaling_; }

  // The quantizer of a role, where its scale is that of the tensor at hand, makes it of the largest
  // amax of all ranks (Quantizer::reduce_amax_over), from the next quantizers() on.
  void reduce_amaxes_over(TensorRole role, ProcessGroupPtr group);

  // The layer's kind, as a custom recipe is told it; "linear" else. `type` lives on.
  void set_module_type(std::string_view type) { module_type_ = type; }

  // The entry of state_dict under _extra_state (core/quantization/extra_state.h).
  at::Tensor extra_state() const;
  // Throws UsageError on bytes that extra_state() did not write.
  void set_extra_state(const at::Tensor& bytes);

 private:
  void make_quantizers(const std::shared_ptr<const Recipe>& recipe, const at::Device& device,
                       std::string_view layer);
  using Answers = std::array<CustomRecipe::Answer, kRoles>;
  Answers ask(const CustomRecipe& recipe, std::string_view layer) const;

  std::shared_ptr<const Recipe> recipe_;
  std::shared_ptr<const DelayedScaling> requested_;  // by recipe_, a custom one; nullptr: nothing
  std::shared_ptr<const DelayedScaling> followed_;   // followed(recipe_), for each forward
  LayerQuantizers quantizers_;
  LayerQuantizers evaluation_quantizers_;
  std::array<ProcessGroupPtr, kRoles> amax_groups_;
  DelayedScalingState delayed_scaling_;
  at::Device device_ = at::kCPU;
  std::string_view module_type_ = "linear";
};

}  // namespace telens
