#include "core/quantization/mxfp8_scaling.h"

namespace telens {

std::shared_ptr<Quantizer> MXFP8BlockScaling::make_quantizer(TensorRole role,
                                                             DelayedScalingState*) const {
  const bool square = enable_2d_quantization && role == TensorRole::weight;
  return std::make_shared<MXFP8Quantizer>(get_format(role),
                                          BlockOptions{.two_dimensional = square});
}

ops::BlockCodesPair MXFP8Quantizer::quantize_matrix(const at::Tensor& x,
                                                    const ops::Orientations& orientations) const {
  return ops::quantize_mxfp8(
      x, format(),
      {.scale_rounding = options().scale_rounding, .two_dimensional = options().two_dimensional},
      orientations);
}

std::shared_ptr<Quantizer> MXFP8Quantizer::copy() const {
  return std::make_shared<MXFP8Quantizer>(*this);
}

}  // namespace telens
