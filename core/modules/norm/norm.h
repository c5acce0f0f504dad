// Layer and RMS normalization with their gradients: the function, the parameters inside other
// modules, and the modules LayerNorm and RMSNorm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/modules/layer/fused_cast.h"
#include "core/modules/module/module.h"
#include "core/modules/shared/parameter_options.h"
#include "core/ops/normalization.h"

namespace telens {

enum class Normalization : std::uint8_t { layer_norm, rms_norm };

// Parses "LayerNorm" or "RMSNorm"; throws UsageError for anything else.
TELENS_EXPORT Normalization normalization_from_name(std::string_view name);

// x [..., *weight.sizes()] -> same shape and dtype. bias: like weight, or undefined; RMS has none.
// Differentiable in all three. x is BF16, FP16, FP32 or FP64. With a cast (not for FP64), fills the
// cast's codes and returns a placeholder.
TELENS_EXPORT at::Tensor normalize(Normalization normalization, const at::Tensor& x,
                                   const at::Tensor& weight, const at::Tensor& bias,
                                   const ops::NormOptions& options, FusedCast* cast = nullptr);

// ---- the normalization inside LayerNormLinear and LayerNormMLP

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

// ---- the modules LayerNorm and RMSNorm

struct NormModuleOptions {
  std::vector<std::int64_t> normalized_shape = {};  // the last sizes of the input
  double eps = 1e-5;
  bool zero_centered_gamma = false;
  ParameterOptions parameters = ParameterOptions();
  std::optional<bool> sequence_parallel = {};  // nullopt if the parameters lack this attribute

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    visit("normalized_shape", &NormModuleOptions::normalized_shape,
          "last sizes of the input: one number or several");
    visit("eps", &NormModuleOptions::eps, "added to the variance");
    visit("zero_centered_gamma", &NormModuleOptions::zero_centered_gamma,
          "the weight starts at 0, and 1 + weight is the factor");
    ParameterOptions::describe_placement_in<NormModuleOptions>(visit,
                                                               &NormModuleOptions::parameters);
    visit("sequence_parallel", &NormModuleOptions::sequence_parallel,
          "the input is this rank's part of a sequence: marks the parameters with an attribute "
          "of this name, for the code that sums their gradients over the group");
  }
};

struct NormInputs {
  at::Tensor inp;  // [..., *normalized_shape]

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    visit("inp", &NormInputs::inp, "[..., *normalized_shape]");
  }
};

// The common part of LayerNorm and RMSNorm.
class TELENS_EXPORT NormModule : public CallableModule<NormInputs> {
 public:
  using Options = NormModuleOptions;

  // Returns the input's shape in its dtype (torch.autocast's if enabled).
  Outputs forward(const NormInputs& inputs) override;

  const NormModuleOptions& options() const { return options_; }

 protected:
  NormModule(Normalization kind, NormModuleOptions options);

 private:
  Normalization kind_;
  NormModuleOptions options_;
  at::Tensor weight_;
  at::Tensor bias_;  // undefined in RMSNorm
};

// y = (x - mean) / sqrt(variance + eps) * weight + bias, over the last dimensions
// (https://arxiv.org/abs/1607.06450). Parameters: weight, bias [*normalized_shape].
class TELENS_EXPORT LayerNorm : public NormModule {
 public:
  explicit LayerNorm(NormModuleOptions options);
};

// y = x / sqrt(mean(x^2) + eps) * weight, over the last dimensions
// (https://arxiv.org/abs/1910.07467). Parameter: weight [*normalized_shape].
class TELENS_EXPORT RMSNorm : public NormModule {
 public:
  explicit RMSNorm(NormModuleOptions options);
};

}  // namespace telens
