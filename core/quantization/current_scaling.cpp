#include "core/quantization/current_scaling.h"

#include "core/distributed/amax_reduction.h"
#include "core/formats/dispatch.h"
#include "core/ops/quantize.h"
#include "core/ops/scaling.h"
#include "core/quantization/tensor_scaling.h"

namespace telens {

CurrentScalingQuantizer::CurrentScalingQuantizer(FormatId format, CurrentScalingOptions options,
                                                 Usage usage)
    : Quantizer(format, usage), options_(options) {}

ScalingMode CurrentScalingQuantizer::mode() const { return ScalingMode::tensor; }

at::Tensor CurrentScalingQuantizer::scale_for(const at::Tensor& x) const {
  const float fp8_max = dispatch_fp8_format(format(), "current scaling",
                                            []<typename Format>() { return Format::kMax; });
  const at::Tensor amax = ops::amax(x);
  if (amax_reduction_group()) {
    AmaxReduction reduction;
    reduction.add(amax.view({1}), amax_reduction_group());
    reduction.run();
  }
  return ops::scale_from_amax(amax, fp8_max, options_.amax_epsilon, options_.power_2_scale);
}

QuantizedTensor CurrentScalingQuantizer::quantize(const at::Tensor& x, Usage usage) const {
  return quantize_with_scale(x, {scale_for(x), {}, format()}, usage);
}

void CurrentScalingQuantizer::quantize_into(const at::Tensor& x, QuantizedTensor& out) const {
  quantize_with_scale_into(x, {scale_for(x), {}, format()}, out);
}

std::shared_ptr<Quantizer> CurrentScalingQuantizer::copy() const {
  return std::make_shared<CurrentScalingQuantizer>(*this);
}

bool CurrentScalingQuantizer::quantizes_as(const Quantizer& other) const {
  return Quantizer::quantizes_as(other) &&
         options_ == static_cast<const CurrentScalingQuantizer&>(other).options_;
}

std::shared_ptr<Quantizer> Float8CurrentScaling::make_quantizer(TensorRole role,
                                                                DelayedScalingState*) const {
  const CurrentScalingOptions& options = is_backward(role)            ? fp8_quant_bwd_grad
                                         : role == TensorRole::weight ? fp8_quant_fwd_weight
                                                                      : fp8_quant_fwd_inp;
  return std::make_shared<CurrentScalingQuantizer>(get_format(role), options);
}

}  // namespace telens
