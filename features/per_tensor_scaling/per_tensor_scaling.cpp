// PerTensorScaling: applies current scaling to selected tensors within delayed scaling.
#include <memory>
#include <string>

#include "core/quantization/current_scaling.h"
#include "features/builtin_features.h"
#include "features/builtin_options.h"
#include "hooks/feature.h"

namespace telens::features {
namespace {

class PerTensorScaling final : public ScheduledFeature {
 public:
  explicit PerTensorScaling(const config::FeatureEntry& entry)
      : ScheduledFeature(entry, {.modify = true}) {}

  bool can_be_captured() const override { return true; }

  // Returns the copy that the GEMM reads, quantized with a scale from the tensor's own amax. The
  // default quantizer's history also records this amax. Throws UsageError if the default quantizer
  // does not scale by a history.
  Operand modify_tensor(const FeatureCall& at, const ModifyTensorCall& call) override;
};

std::string what_runs(const Quantizer* quantizer) {
  if (quantizer == nullptr) return "the tensor is not quantized here: no fp8_autocast is on";
  const bool per_tensor = quantizer->mode() == ScalingMode::tensor;
  return fmt::format("the recipe that runs has {} scaling",
                     per_tensor ? "current" : telens::get_name(quantizer->mode()));
}

const Quantizer& delayed_quantizer(const ModifyTensorCall& call) {
  const Quantizer* quantizer = call.default_quantizer;
  if (quantizer == nullptr || !quantizer->known_scale().defined()) {
    raise<UsageError>(
        "{} of {}: per-tensor current scaling works only inside fp8_autocast with DelayedScaling; "
        "{}; take that recipe, or leave the layer out of the section",
        telens::get_name(call.tensor_name), telens::get_name(call.gemm), what_runs(quantizer));
  }
  return *quantizer;
}

}  // namespace

Operand PerTensorScaling::modify_tensor(const FeatureCall&, const ModifyTensorCall& call) {
  const Quantizer& delayed = delayed_quantizer(call);
  const bool rowwise = call.gemm == get_gemms(call.tensor_name).first;
  CurrentScalingQuantizer current(delayed.format());
  current.reduce_amax_over(delayed.amax_reduction_group());
  const at::Tensor scale = current.scale_for(call.tensor);
  return call.deliver(quantize_with_scale(call.tensor,
                                          {scale, delayed.running_amax(), delayed.format()},
                                          {.rowwise = rowwise, .columnwise = !rowwise}));
}

FeatureRegistration per_tensor_scaling() {
  return {per_tensor_scaling_description(),
          [](const config::FeatureEntry& entry, FeatureServices&) {
            return std::make_unique<PerTensorScaling>(entry);
          }};
}

}  // namespace telens::features
