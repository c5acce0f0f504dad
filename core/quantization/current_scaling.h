// Current scaling: a tensor's scale comes from its own amax, which costs a second read. Also the
// quantization under one FP32 scale that delayed and current scaling share.
#pragma once

#include <memory>

#include "core/ops/quantize.h"
#include "core/quantization/quantizer.h"
#include "core/quantization/recipe.h"

namespace telens {

struct TensorScale {
  at::Tensor scale;  // FP32, 1 element
  at::Tensor amax;   // FP32, 1 element: raised to x's amax; may be undefined
  FormatId format;
};

QuantizedTensor quantize_with_scale(const at::Tensor& x, const TensorScale& scaling, Usage usage);
// Quantizes into the storage of `out`.
void quantize_with_scale_into(const at::Tensor& x, const TensorScale& scaling,
                              QuantizedTensor& out);

// Wraps the codes that an operator produced from a matrix of this dtype under one scale.
QuantizedTensor wrap_codes(ops::OrientedCodes codes, const at::Tensor& scale, FormatId format,
                           at::ScalarType dtype);

// How current scaling turns an amax into a scale (Transformer Engine's QParams).
struct CurrentScalingOptions {
  bool power_2_scale = false;  // rounds the scale down to a power of two
  float amax_epsilon = 0.0F;   // lower bound of amaxes

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

  // Returns the scale that quantize() would use for x: FP32, 1 element, on x's device.
  at::Tensor scale_for(const at::Tensor& x) const;

 private:
  CurrentScalingOptions options_;
};

}  // namespace telens
