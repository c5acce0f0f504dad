// y = (x - mean) / sqrt(variance + eps) * weight + bias, over the last dimensions
// (https://arxiv.org/abs/1607.06450).
#pragma once

#include "core/modules/module/module.h"
#include "core/modules/norm/normalize.h"

namespace telens {

// Parameters: weight, bias [*normalized_shape].
class TELENS_EXPORT LayerNorm : public CallableModule<NormInputs> {
 public:
  using Options = NormModuleOptions;

  explicit LayerNorm(NormModuleOptions options);

  // Returns the input's shape in its dtype (torch.autocast's if enabled).
  Outputs forward(const NormInputs& inputs) override;

  const NormModuleOptions& options() const { return options_; }

 private:
  NormModuleOptions options_;
  at::Tensor weight_;
  at::Tensor bias_;
};

}  // namespace telens
