#include "core/modules/transformer/transformer_layer.h"

#include <cmath>
#include <set>

#include "core/modules/module/module.h"
#include "tests/core/modules/module_reference.h"

namespace telens {
namespace {

using test::Leaf;
using test::near;
using test::ReferenceParameters;

class ATransformerLayer : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(2); }

  static TransformerLayerOptions options() {
    return {.hidden_size = 32,
            .ffn_hidden_size = 64,
            .num_attention_heads = 4,
            .hidden_dropout = 0,
            .attention_dropout = 0};
  }
};

std::set<std::string> get_names(const StateDict& state) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : state) names.insert(name);
  return names;
}

TEST_F(ATransformerLayer, state_dict_keys_match_transformer_engine) {
  TransformerLayer module(options());
  const std::set<std::string> expected{
      "self_attention.core_attention._extra_state",
      "self_attention.layernorm_qkv._extra_state",
      "self_attention.layernorm_qkv.key_bias",
      "self_attention.layernorm_qkv.key_weight",
      "self_attention.layernorm_qkv.layer_norm_bias",
      "self_attention.layernorm_qkv.layer_norm_weight",
      "self_attention.layernorm_qkv.query_bias",
      "self_attention.layernorm_qkv.query_weight",
      "self_attention.layernorm_qkv.value_bias",
      "self_attention.layernorm_qkv.value_weight",
      "self_attention.proj._extra_state",
      "self_attention.proj.bias",
      "self_attention.proj.weight",
      "layernorm_mlp._extra_state",
      "layernorm_mlp.fc1_bias",
      "layernorm_mlp.fc1_weight",
      "layernorm_mlp.fc2_bias",
      "layernorm_mlp.fc2_weight",
      "layernorm_mlp.layer_norm_bias",
      "layernorm_mlp.layer_norm_weight",
  };
  EXPECT_EQ(get_names(state_dict(module)), expected);
}

TEST_F(ATransformerLayer, decoder_state_dict_keys_match_transformer_engine) {
  TransformerLayerOptions fused = options();
  fused.fuse_qkv_params = true;
  fused.layer_type = "decoder";
  fused.output_layernorm = true;
  fused.bias = false;
  TransformerLayer module(fused);
  const std::set<std::string> expected{
      "self_attention.core_attention._extra_state",
      "self_attention.qkv._extra_state",
      "self_attention.qkv.weight",
      "self_attention.proj._extra_state",
      "self_attention.proj.weight",
      "inter_attention.core_attention._extra_state",
      "inter_attention.layernorm_query._extra_state",
      "inter_attention.layernorm_query.layer_norm_bias",
      "inter_attention.layernorm_query.layer_norm_weight",
      "inter_attention.layernorm_query.weight",
      "inter_attention.key_value._extra_state",
      "inter_attention.key_value.weight",
      "inter_attention.proj._extra_state",
      "inter_attention.proj.weight",
      "layernorm_mlp._extra_state",
      "layernorm_mlp.fc1_weight",
      "layernorm_mlp.fc2_weight",
      "layernorm_mlp.layer_norm_bias",
      "layernorm_mlp.layer_norm_weight",
      "layernorm.bias",
      "layernorm.weight",
  };
  EXPECT_EQ(get_names(state_dict(module)), expected);
}

// Self attention of a layer with fuse_qkv_params and weights that are not interleaved, and the MLP.
struct LayerReference {
  const ReferenceParameters& parameters;

  at::Tensor attention(const at::Tensor& x) const {
    const at::Tensor normalized =
        test::norm_reference(x, parameters["self_attention.layernorm_qkv.layer_norm_weight"],
                             parameters["self_attention.layernorm_qkv.layer_norm_bias"]);
    const auto parts =
        test::linear_reference(normalized, parameters["self_attention.layernorm_qkv.weight"],
                               parameters["self_attention.layernorm_qkv.bias"])
            .unflatten(-1, {3, 4, 8})
            .unbind(-3);
    const at::Tensor attended =
        test::attention_reference(parts[0], parts[1], parts[2], test::causal(x.size(0), x.size(0)));
    return test::linear_reference(attended, parameters["self_attention.proj.weight"],
                                  parameters["self_attention.proj.bias"]);
  }
  at::Tensor normalized_for_mlp(const at::Tensor& x) const {
    return test::norm_reference(x, parameters["layernorm_mlp.layer_norm_weight"],
                                parameters["layernorm_mlp.layer_norm_bias"]);
  }
  at::Tensor mlp(const at::Tensor& x) const {
    const at::Tensor hidden =
        test::linear_reference(normalized_for_mlp(x), parameters["layernorm_mlp.fc1_weight"],
                               parameters["layernorm_mlp.fc1_bias"]);
    return test::linear_reference(at::gelu(hidden, "tanh"), parameters["layernorm_mlp.fc2_weight"],
                                  parameters["layernorm_mlp.fc2_bias"]);
  }
};

TransformerLayerOptions fused(TransformerLayerOptions options) {
  options.fuse_qkv_params = true;
  options.qkv_weight_interleaved = false;
  return options;
}

template <typename Reference>
void expect_as(const TransformerLayerOptions& options, const Reference& reference) {
  TransformerLayer module(options);
  test::randomize(module);
  const ReferenceParameters parameters(module);
  const Leaf x(at::randn({6, 2, 32}));
  const at::Tensor y = module.forward({.hidden_states = x.tensor})[0];
  const at::Tensor expected = reference(LayerReference{parameters}, x.reference);
  EXPECT_TRUE(near(y, expected, 1e-5, 2e-5));
  const at::Tensor grad = at::randn(y.sizes());
  y.backward(grad);
  expected.backward(grad.to(at::kDouble));
  EXPECT_TRUE(near(x.tensor.grad(), x.reference.grad(), 1e-4, 1e-4));
  EXPECT_TRUE(parameters.gradients_near(module, 1e-4, 2e-4));
}

TEST_F(ATransformerLayer, equals_its_parts_in_fp64) {
  expect_as(fused(options()), [](const LayerReference& layer, const at::Tensor& x) {
    const at::Tensor hidden = x + layer.attention(x);
    return hidden + layer.mlp(hidden);
  });
}

TEST_F(ATransformerLayer, parallel_attention_mlp_adds_both_to_the_input) {
  TransformerLayerOptions parallel = fused(options());
  parallel.parallel_attention_mlp = true;
  expect_as(parallel, [](const LayerReference& layer, const at::Tensor& x) {
    return x + layer.attention(x) + layer.mlp(x);
  });
}

TEST_F(ATransformerLayer, residual_after_the_norm) {
  TransformerLayerOptions post = fused(options());
  post.apply_residual_connection_post_layernorm = true;
  expect_as(post, [](const LayerReference& layer, const at::Tensor& x) {
    const at::Tensor normalized =
        test::norm_reference(x, layer.parameters["self_attention.layernorm_qkv.layer_norm_weight"],
                             layer.parameters["self_attention.layernorm_qkv.layer_norm_bias"]);
    const at::Tensor hidden = normalized + layer.attention(x);
    return layer.normalized_for_mlp(hidden) + layer.mlp(hidden);
  });
}

TEST_F(ATransformerLayer, gradients_match_finite_differences) {
  TransformerLayerOptions gated = options();
  gated.activation = "swiglu";
  gated.normalization = "RMSNorm";
  gated.num_gqa_groups = 2;
  gated.layer_type = "decoder";
  TransformerLayer module(gated);
  test::randomize(module);
  const at::Tensor x = at::randn({5, 2, 32}).set_requires_grad(true);
  const at::Tensor memory = at::randn({3, 2, 32}), grad = at::randn({5, 2, 32});
  const auto forward = [&](const at::Tensor& input) {
    return module.forward({.hidden_states = input, .encoder_output = memory})[0];
  };
  forward(x).backward(grad);
  const at::Tensor direction = at::randn({5, 2, 32});
  const double step = 3e-3;
  const at::NoGradGuard no_grad;
  const auto along = [&](double distance) {
    return (forward(x + direction * distance).to(at::kDouble) * grad).sum().item<double>();
  };
  const double slope = (along(step) - along(-step)) / (2 * step);
  const double expected = (x.grad() * direction).sum().item<double>();
  EXPECT_NEAR(slope, expected, 5e-3 * (1 + std::abs(expected)));
}

TEST_F(ATransformerLayer, output_is_equal_in_both_input_formats) {
  TransformerLayerOptions batch_first = options();
  batch_first.attn_input_format = "bshd";
  TransformerLayer sbhd(options()), bshd(batch_first);
  load_state_dict(bshd, state_dict(sbhd));
  const at::Tensor x = at::randn({6, 2, 32});
  EXPECT_TRUE(near(bshd.forward({.hidden_states = x.transpose(0, 1)})[0].transpose(0, 1),
                   sbhd.forward({.hidden_states = x})[0], 1e-5, 1e-5));
}

TEST_F(ATransformerLayer, dropout_only_in_training_with_torch_generator) {
  TransformerLayerOptions dropping = options();
  dropping.hidden_dropout = 0.5;
  TransformerLayer module(dropping);
  const at::Tensor x = at::randn({6, 2, 32});
  const auto run = [&](std::uint64_t seed) {
    at::manual_seed(seed);
    return module.forward({.hidden_states = x})[0];
  };
  EXPECT_TRUE(at::equal(run(1), run(1)));
  EXPECT_FALSE(at::equal(run(1), run(2)));
  module.eval();
  EXPECT_TRUE(at::equal(run(1), run(2)));
}

TEST_F(ATransformerLayer, calls_a_replaced_child) {
  TransformerLayer module(options());
  const at::Tensor x = at::randn({6, 2, 32});
  auto mlp = std::dynamic_pointer_cast<LayerNormMLP>(module.named_children()["layernorm_mlp"]);
  mlp->set_override([](const LayerNormMLPInputs& inputs) { return Outputs{-inputs.inp}; });
  EXPECT_TRUE(at::equal(module.forward({.hidden_states = x})[0], at::zeros({6, 2, 32})));
  mlp->set_override(nullptr);
  EXPECT_FALSE(at::equal(module.forward({.hidden_states = x})[0], at::zeros({6, 2, 32})));
}

TEST_F(ATransformerLayer, rejects_contradictory_options) {
  TransformerLayerOptions wrong = options();
  wrong.layer_type = "coder";
  EXPECT_THROW(TransformerLayer{wrong}, UsageError);
  wrong = options();
  wrong.parallel_attention_mlp = true;
  wrong.layer_type = "decoder";
  EXPECT_THROW(TransformerLayer{wrong}, UsageError);
  TransformerLayerOptions decoder = options();
  decoder.layer_type = "decoder";
  TransformerLayer module(decoder);
  EXPECT_THROW(module.forward({.hidden_states = at::randn({6, 2, 32})}), UsageError);
}

TEST_F(ATransformerLayer, rejects_a_mismatched_state_dict) {
  TransformerLayer module(options());
  StateDict state = state_dict(module);
  state.erase("layernorm_mlp.fc1_weight");
  EXPECT_THROW(load_state_dict(module, state), UsageError);
  state["layernorm_mlp.fc1_weight"] = at::randn({64, 16});
  EXPECT_THROW(load_state_dict(module, state), ShapeError);
}

}  // namespace
}  // namespace telens
