// Current scaling: a tensor's scale comes from its own amax, at the price of a second read.
#pragma once

#include <memory>

#include "core/quantization/recipe.h"

namespace telens {

// How current scaling turns an amax into a scale (Transformer Engine's QParams).
struct CurrentScalingOptions {
  bool power_2_scale = false;  // rounds the scale down to a power of two
  float amax_epsilon = 0.0F;   // amaxes below it count as this one

  bool operator==(const CurrentScalingOptions&) const = default;
};

struct TELENS_EXPORT Float8CurrentScaling final : Recipe {
  CurrentScalingOptions fp8_quant_fwd_inp;
  CurrentScalingOptions fp8_quant_fwd_weight;
  CurrentScalingOptions fp8_quant_bwd_grad;

  std::string_view name() const override { return "fp8_current_scaling"; }
  std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                            DelayedScalingState* state) const override;
};

class CurrentScalingQuantizer final : public Quantizer {
 public:
  explicit CurrentScalingQuantizer(FormatId format, CurrentScalingOptions options = {},
                                   Usage usage = {});

  ScalingMode mode() const override;
  using Quantizer::quantize;
  QuantizedTensor quantize(const at::Tensor& x, Usage usage) const override;
  void quantize_into(const at::Tensor& x, QuantizedTensor& out) const override;
  void calibrate(const at::Tensor& x) const override {}
  std::shared_ptr<Quantizer> copy() const override;
  bool quantizes_as(const Quantizer& other) const override;

  // The scale that quantize would use for x: FP32, 1 element, on x's device.
  at::Tensor scale_for(const at::Tensor& x) const;

 private:
  CurrentScalingOptions options_;
};

}  // namespace telens
