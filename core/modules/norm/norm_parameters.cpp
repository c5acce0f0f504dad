#include "core/modules/norm/norm_parameters.h"

namespace telens {

void NormParameters::make(const NormParametersOptions& options, const ParameterOptions& parameters,
                          const RegisterTensor& register_tensor) {
  kind_ = normalization_from_name(options.normalization);
  options_ = {.eps = options.eps, .zero_centered_gamma = options.zero_centered_gamma};
  register_tensor(
      "layer_norm_weight", weight_,
      parameters.make_constant({options.features}, options.zero_centered_gamma ? 0 : 1));
  if (kind_ == Normalization::layer_norm) {
    register_tensor("layer_norm_bias", bias_, parameters.make_constant({options.features}, 0));
  }
}

}  // namespace telens
