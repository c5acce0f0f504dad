// y = x / sqrt(mean(x^2) + eps) * weight, over the last dimensions
// (https://arxiv.org/abs/1910.07467).
#pragma once

#include "core/modules/module/module.h"
#include "core/modules/norm/normalize.h"

namespace telens {

// Parameter: weight [*normalized_shape].
class TELENS_EXPORT RMSNorm : public CallableModule<NormInputs> {
 public:
  using Options = NormModuleOptions;

  explicit RMSNorm(NormModuleOptions options);

  // Returns the input's shape in its dtype (torch.autocast's if enabled).
  Outputs forward(const NormInputs& inputs) override;

  const NormModuleOptions& options() const { return options_; }

 private:
  NormModuleOptions options_;
  at::Tensor weight_;
};

}  // namespace telens
