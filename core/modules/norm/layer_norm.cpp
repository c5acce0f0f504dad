#include "core/modules/norm/layer_norm.h"

#include "core/modules/norm/normalize.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/modules/shared/checks.h"
#include "core/ops/backends.h"

namespace telens {

LayerNorm::LayerNorm(NormModuleOptions options) : options_(std::move(options)) {
  check_epsilon("LayerNorm", "eps", options_.eps);
  const auto& sizes = options_.normalized_shape;
  const double initial = options_.zero_centered_gamma ? 0 : 1;
  register_slot("weight", weight_, options_.parameters.make_constant(sizes, initial));
  register_slot("bias", bias_, options_.parameters.make_constant(sizes, 0));
  for (const char* name : {"weight", "bias"}) {
    place(name, {.sequence_parallel = options_.sequence_parallel});
  }
}

Outputs LayerNorm::forward(const NormInputs& inputs) {
  static const std::string kName = "LayerNorm";
  ops::check_runs_on(inputs.inp.device(), kName);
  return naming_layer(kName, [&]() -> Outputs {
    return {normalize(Normalization::layer_norm, to_activation_dtype(inputs.inp), weight_, bias_,
                      {.eps = options_.eps, .zero_centered_gamma = options_.zero_centered_gamma})};
  });
}

}  // namespace telens
