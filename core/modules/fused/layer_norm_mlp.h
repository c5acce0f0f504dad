// Normalization, then two linear layers with an activation between them.
#pragma once

#include <optional>
#include <string>

#include "core/modules/fused/mlp_activation.h"
#include "core/modules/layer/linear_layer.h"
#include "core/modules/layer/linear_parallel.h"
#include "core/modules/module/module.h"
#include "core/modules/norm/norm.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

struct LayerNormMLPOptions {
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;
  double eps = 1e-5;
  bool return_bias = false;
  bool bias = true;
  std::string normalization = "LayerNorm";
  std::string activation = "gelu";
  ActivationParameters activation_params = {};
  ParameterOptions::InitMethod output_layer_init_method = {};
  bool return_layernorm_output = false;
  bool return_layernorm_output_gathered = false;
  bool zero_centered_gamma = false;
  bool set_parallel_mode = false;
  ParameterOptions parameters = ParameterOptions();
  std::string name = {};
  OverlapSwitches overlap = OverlapSwitches();

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    using Self = LayerNormMLPOptions;
    visit("hidden_size", &Self::hidden_size, "size of an input and an output sample");
    visit("ffn_hidden_size", &Self::ffn_hidden_size, "size between the two linear layers");
    visit("eps", &Self::eps, "added to the variance");
    visit("return_bias", &Self::return_bias,
          "returns (output without bias, fc2's bias), so that a later operation can add the bias");
    visit("bias", &Self::bias, "fc1 and fc2 add learned biases");
    visit("normalization", &Self::normalization, "LayerNorm or RMSNorm");
    visit("activation", &Self::activation,
          "gelu, geglu, qgelu, qgeglu, relu, reglu, srelu, sreglu, silu, swiglu, glu or "
          "clamped_swiglu");
    visit("output_layer_init_method", &Self::output_layer_init_method,
          "fills fc2's weight in place; default: as init_method's default");
    visit("return_layernorm_output", &Self::return_layernorm_output,
          "returns the normalized input too, as the last output");
    visit("zero_centered_gamma", &Self::zero_centered_gamma,
          "the norm's weight starts at 0, and 1 + weight is the factor");
    ParameterOptions::describe_in<Self>(visit, &Self::parameters);
    visit("name", &Self::name, "name in debug configurations: of two layers, .fc1 and .fc2");
    ParameterOptions::describe_sequence_parallel_in<Self>(visit, &Self::parameters);
    visit("set_parallel_mode", &Self::set_parallel_mode,
          "divides the layers among the ranks of tp_group: fc1 by column, fc2 by row");
    visit("return_layernorm_output_gathered", &Self::return_layernorm_output_gathered,
          "with sequence_parallel: return_layernorm_output returns the rows of every rank");
    visit("activation_params", &Self::activation_params,
          "parameters of clamped_swiglu: limit (7), alpha (1.702), glu_linear_offset (1)");
    ParameterOptions::describe_symmetric_in<Self>(visit, &Self::parameters);
    OverlapSwitches::describe_in<Self>(visit, &Self::overlap);
  }
};

struct LayerNormMLPInputs {
  at::Tensor inp;  // [..., hidden_size]
  std::optional<bool> is_first_microbatch = {};

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    using Self = LayerNormMLPInputs;
    visit("inp", &Self::inp, "[..., hidden_size]");
    visit("is_first_microbatch", &Self::is_first_microbatch,
          "whether to quantize and cache the weights (True), use the cached ones (False), or "
          "not cache them (None)");
  }
};

// Parameters: layer_norm_weight, layer_norm_bias [hidden_size] (no bias for RMSNorm), fc1_weight
// [ffn_hidden_size, hidden_size] (twice the rows for a gated activation), fc1_bias, fc2_weight
// [hidden_size, ffn_hidden_size], fc2_bias. With set_parallel_mode, ffn_hidden_size is this rank's
// part; a gated fc1 contains that part from both halves.
class TELENS_EXPORT LayerNormMLP : public CallableModule<LayerNormMLPInputs> {
 public:
  using Options = LayerNormMLPOptions;

  explicit LayerNormMLP(LayerNormMLPOptions options);

  // Returns (output [..., hidden_size]; fc2's bias if return_bias; normalized input if
  // return_layernorm_output), in the activation's dtype (torch.autocast's if enabled).
  Outputs forward(const LayerNormMLPInputs& inputs) override;

  at::Tensor extra_state() const override;
  void set_debug_name(const std::string& name) override;
  std::vector<LinearLayer*> layers() override { return {&fc1_, &fc2_}; }

  const LayerNormMLPOptions& options() const { return options_; }

 protected:
  void load_extra_state(const at::Tensor& bytes, const std::string& key) override;

 private:
  LayerNormMLPOptions options_;
  MlpActivation activation_;
  NormParameters norm_;
  Weight fc1_weight_;
  at::Tensor fc1_bias_;
  Weight fc2_weight_;
  at::Tensor fc2_bias_;
  NamedLayers layers_;
  LinearLayer fc1_;
  LinearLayer fc2_;
};

}  // namespace telens
