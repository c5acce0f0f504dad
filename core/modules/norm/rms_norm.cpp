#include "core/modules/norm/rms_norm.h"

#include "core/modules/norm/normalize.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/modules/shared/checks.h"
#include "core/ops/backends.h"

namespace telens {

RMSNorm::RMSNorm(NormModuleOptions options) : options_(std::move(options)) {
  check_epsilon("RMSNorm", "eps", options_.eps);
  const double initial = options_.zero_centered_gamma ? 0 : 1;
  register_slot("weight", weight_,
                options_.parameters.make_constant(options_.normalized_shape, initial));
  place("weight", {.sequence_parallel = options_.sequence_parallel});
}

Outputs RMSNorm::forward(const NormInputs& inputs) {
  static const std::string kName = "RMSNorm";
  ops::check_runs_on(inputs.inp.device(), kName);
  return naming_layer(kName, [&]() -> Outputs {
    return {normalize(Normalization::rms_norm, to_activation_dtype(inputs.inp), weight_, {},
                      {.eps = options_.eps, .zero_centered_gamma = options_.zero_centered_gamma})};
  });
}

}  // namespace telens
