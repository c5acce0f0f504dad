// Normalization, then y = x A^T + b.
#pragma once

#include <optional>
#include <string>

#include "core/modules/layer/linear_layer.h"
#include "core/modules/layer/linear_parallel.h"
#include "core/modules/linear/linear.h"
#include "core/modules/module/module.h"
#include "core/modules/norm/norm.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

struct LayerNormLinearOptions {
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  double eps = 1e-5;
  std::string normalization = "LayerNorm";
  bool bias = true;
  bool return_bias = false;
  bool return_layernorm_output = false;
  bool return_layernorm_output_gathered = false;
  bool zero_centered_gamma = false;
  ParameterOptions parameters = ParameterOptions();
  std::string name = {};
  std::vector<ParameterPart> parameters_split = {};
  OverlapSwitches overlap = OverlapSwitches();

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    using Self = LayerNormLinearOptions;
    visit("in_features", &Self::in_features, "size of an input sample");
    visit("out_features", &Self::out_features, "size of an output sample");
    visit("eps", &Self::eps, "added to the variance");
    visit("normalization", &Self::normalization, "LayerNorm or RMSNorm");
    visit("bias", &Self::bias, "adds a learned bias");
    visit("return_bias", &Self::return_bias,
          "returns (output without bias, bias), so that a later operation can add the bias");
    visit("return_layernorm_output", &Self::return_layernorm_output,
          "returns the normalized input too, as the last output");
    visit("zero_centered_gamma", &Self::zero_centered_gamma,
          "the norm's weight starts at 0, and 1 + weight is the factor");
    ParameterOptions::describe_in<Self>(visit, &Self::parameters);
    visit("name", &Self::name, "name in debug configurations");
    visit("parameters_split", &Self::parameters_split,
          "rows per part of a weight that is stored in parts, <part>_weight and <part>_bias; "
          "only names: equal parts");
    ParameterOptions::describe_linear_parallel_in<Self>(visit, &Self::parameters);
    visit("return_layernorm_output_gathered", &Self::return_layernorm_output_gathered,
          "with sequence_parallel: return_layernorm_output returns the rows of every rank");
    ParameterOptions::describe_symmetric_in<Self>(visit, &Self::parameters);
    OverlapSwitches::describe_named_in<Self>(visit, &Self::overlap);
  }
};

struct LayerNormLinearInputs {
  at::Tensor inp;  // [..., in_features]
  std::optional<bool> is_first_microbatch = {};
  bool fp8_output = false;
  bool fp8_grad = false;

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    using Self = LayerNormLinearInputs;
    visit("inp", &Self::inp, "[..., in_features]");
    visit("is_first_microbatch", &Self::is_first_microbatch,
          "whether to quantize and cache the weight (True), use the cached one (False), or not "
          "cache it (None)");
    visit("fp8_output", &Self::fp8_output,
          "quantizes the output under a recipe, so that the next layer does not cast it again");
    visit("fp8_grad", &Self::fp8_grad,
          "rounds the gradient of the normalized input to FP8 values, before the norm's backward");
  }
};

// Parameters: layer_norm_weight [in_features], layer_norm_bias [in_features] (not for RMSNorm),
// weight [out_features, in_features], bias [out_features].
class TELENS_EXPORT LayerNormLinear : public CallableModule<LayerNormLinearInputs> {
 public:
  using Options = LayerNormLinearOptions;

  explicit LayerNormLinear(LayerNormLinearOptions options);

  // Returns (output [..., out_features]; bias if return_bias; normalized input if
  // return_layernorm_output), in the activation's dtype (torch.autocast's if enabled).
  Outputs forward(const LayerNormLinearInputs& inputs) override;

  at::Tensor extra_state() const override;
  void set_debug_name(const std::string& name) override;
  std::vector<LinearLayer*> layers() override { return {&operation_}; }

  const LayerNormLinearOptions& options() const { return options_; }

 protected:
  void load_extra_state(const at::Tensor& bytes, const std::string& key) override;

 private:
  LayerNormLinearOptions options_;
  NormParameters norm_;
  LinearParameters linear_;
  LinearLayer operation_;
};

}  // namespace telens
