// The normalization inside LayerNormLinear and LayerNormMLP.
#pragma once

#include <functional>
#include <string>

#include "core/modules/norm/normalize.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

struct NormParametersOptions {
  std::int64_t features;
  std::string normalization;  // LayerNorm or RMSNorm
  double eps;
  bool zero_centered_gamma;
};

// layer_norm_weight and, for LayerNorm, layer_norm_bias: [features].
class NormParameters {
 public:
  using RegisterTensor = std::function<void(std::string name, at::Tensor& slot, at::Tensor value)>;

  // Creates the parameters and passes them to the module's register function.
  void make(const NormParametersOptions& options, const ParameterOptions& parameters,
            const RegisterTensor& register_tensor);

  // x [..., features] -> same shape and dtype, or a placeholder and the cast's codes.
  at::Tensor operator()(const at::Tensor& x, FusedCast* cast = nullptr) const {
    return normalize(kind_, x, weight_, bias_, options_, cast);
  }

 private:
  Normalization kind_ = Normalization::layer_norm;
  ops::NormOptions options_;
  at::Tensor weight_;
  at::Tensor bias_;
};

}  // namespace telens
