#include "core/quantization/nvfp4_scaling.h"

#include <ATen/ops/empty.h>

namespace telens {

std::shared_ptr<Quantizer> NVFP4BlockScaling::make_quantizer(TensorRole role,
                                                             DelayedScalingState*) const {
  BlockOptions options;
  if (role == TensorRole::weight) {
    options.two_dimensional = !disable_2d_quantization;
  } else if (!disable_rht) {
    options.hadamard_signs = kRandomHadamardSigns;
  }
  options.stochastic_rounding = is_backward(role) && !disable_stochastic_rounding;
  return std::make_shared<NVFP4Quantizer>(options);
}

ops::BlockCodesPair NVFP4Quantizer::quantize_matrix(const at::Tensor& x,
                                                    const ops::Orientations& orientations) const {
  at::Tensor random_state;
  if (options().stochastic_rounding) {
    random_state = at::empty({2}, x.options().dtype(at::kLong)).random_();
  }
  return ops::quantize_nvfp4(x,
                             {.two_dimensional = options().two_dimensional,
                              .hadamard_signs = options().hadamard_signs,
                              .random_state = random_state},
                             orientations);
}

std::shared_ptr<Quantizer> NVFP4Quantizer::copy() const {
  return std::make_shared<NVFP4Quantizer>(*this);
}

}  // namespace telens
