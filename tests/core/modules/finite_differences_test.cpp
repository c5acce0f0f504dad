// The gradient of every parameter and every input of every module, against finite differences.
#include "tests/core/modules/finite_differences.h"

#include "core/modules/module_list.h"
#include "core/ops/activation.h"
#include "tests/core/modules/module_reference.h"

namespace telens {
namespace {

using test::expect_gradients_of;
using test::NamedLeaf;
using test::Precision;

class FiniteDifferences : public testing::TestWithParam<Precision> {
 protected:
  void SetUp() override { at::manual_seed(41); }

  // With random parameters: a weight of zero or one could hide an error.
  template <typename ModuleT, typename Options>
  static std::shared_ptr<ModuleT> make(Options options) {
    options.parameters.params_dtype = GetParam().dtype;
    options.parameters.device = at::kCPU;
    auto module = std::make_shared<ModuleT>(options);
    test::randomize(*module);
    return module;
  }
  static NamedLeaf input(const std::string& name, at::IntArrayRef sizes) {
    return test::random_leaf(name, sizes, GetParam().dtype);
  }
  static void expect_gradients_of_encoder(const TransformerLayerOptions& options) {
    const auto module = make<TransformerLayer>(options);
    const NamedLeaf x = input("hidden_states", {3, 2, 8});
    expect_gradients_of(*module, {x}, GetParam(),
                        [&] { return (*module)({.hidden_states = x.tensor}); });
  }
};
INSTANTIATE_TEST_SUITE_P(In, FiniteDifferences, testing::ValuesIn(test::kPrecisions),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(FiniteDifferences, linear_gradients) {
  for (const bool bias : {true, false}) {
    const auto module =
        make<Linear>(LinearOptions{.in_features = 5, .out_features = 4, .bias = bias});
    const NamedLeaf x = input("x", {2, 3, 5});
    expect_gradients_of(*module, {x}, GetParam(), [&] { return (*module)({x.tensor}); });
  }
  const auto split = make<Linear>(LinearOptions{
      .in_features = 3, .out_features = 6, .parameters_split = {{"query", 4}, {"key", 2}}});
  const NamedLeaf x = input("x", {4, 3});
  expect_gradients_of(*split, {x}, GetParam(), [&] { return (*split)({x.tensor}); });
}

TEST_P(FiniteDifferences, norm_gradients) {
  for (const bool centered : {false, true}) {
    const NormModuleOptions options{.normalized_shape = {6}, .zero_centered_gamma = centered};
    const auto layer_norm = make<LayerNorm>(options);
    const auto rms_norm = make<RMSNorm>(options);
    const NamedLeaf x = input("x", {2, 3, 6}), y = input("x", {2, 3, 6});
    expect_gradients_of(*layer_norm, {x}, GetParam(), [&] { return (*layer_norm)({x.tensor}); });
    expect_gradients_of(*rms_norm, {y}, GetParam(), [&] { return (*rms_norm)({y.tensor}); });
  }
}

TEST_P(FiniteDifferences, layer_norm_linear_gradients) {
  for (const std::string normalization : {"LayerNorm", "RMSNorm"}) {
    for (const bool both_outputs : {false, true}) {
      SCOPED_TRACE(normalization);
      LayerNormLinearOptions options{.in_features = 6, .out_features = 4};
      options.normalization = normalization;
      options.return_layernorm_output = both_outputs;
      options.zero_centered_gamma = both_outputs;
      const auto module = make<LayerNormLinear>(options);
      const NamedLeaf x = input("x", {2, 3, 6});
      expect_gradients_of(*module, {x}, GetParam(), [&] { return (*module)({.inp = x.tensor}); });
    }
  }
}

TEST_P(FiniteDifferences, layer_norm_mlp_gradients_for_every_activation) {
  bool with_layer_norm = true;
  for (const ops::Activation& activation : ops::kActivations) {
    SCOPED_TRACE(activation.name);
    with_layer_norm = !with_layer_norm;
    LayerNormMLPOptions options{.hidden_size = 4, .ffn_hidden_size = 6};
    options.normalization = with_layer_norm ? "LayerNorm" : "RMSNorm";
    options.activation = activation.name;
    options.return_layernorm_output = with_layer_norm;
    const auto module = make<LayerNormMLP>(options);
    const NamedLeaf x = input("x", {5, 4});
    expect_gradients_of(*module, {x}, GetParam(), [&] { return (*module)({.inp = x.tensor}); });
  }
}

TEST_P(FiniteDifferences, dot_product_attention_gradients) {
  for (const std::string mask : {"no_mask", "causal", "causal_bottom_right", "padding"}) {
    SCOPED_TRACE(mask);
    DotProductAttentionOptions options{.num_attention_heads = 4, .kv_channels = {3}};
    options.num_gqa_groups = 2;
    options.attn_mask_type = mask;
    DotProductAttention module(options);
    const NamedLeaf query = input("query", {3, 2, 4, 3}), key = input("key", {3, 2, 2, 3}),
                    value = input("value", {3, 2, 2, 3});
    DotProductAttentionInputs inputs{
        .query_layer = query.tensor, .key_layer = key.tensor, .value_layer = value.tensor};
    if (mask == "padding") {
      const at::Tensor padded = at::zeros({2, 1, 1, 3}, at::kBool);
      padded[1][0][0][2].fill_(true);
      inputs.attention_mask = {padded};
    }
    expect_gradients_of({query, key, value}, GetParam(), [&] { return module(inputs); });
  }
}

TEST_P(FiniteDifferences, multihead_attention_gradients) {
  MultiheadAttentionOptions options{.hidden_size = 8, .num_attention_heads = 2};
  options.attention_dropout = 0;
  options.input_layernorm = true;
  const auto self = make<MultiheadAttention>(options);
  const NamedLeaf x = input("hidden_states", {4, 2, 8});
  expect_gradients_of(*self, {x}, GetParam(), [&] { return (*self)({.hidden_states = x.tensor}); });

  options.attention_type = "cross";
  options.attn_mask_type = "no_mask";
  options.fuse_qkv_params = true;
  const auto cross = make<MultiheadAttention>(options);
  const NamedLeaf y = input("hidden_states", {3, 2, 8}),
                  memory = input("encoder_output", {5, 2, 8});
  expect_gradients_of(*cross, {y, memory}, GetParam(), [&] {
    return (*cross)({.hidden_states = y.tensor, .encoder_output = memory.tensor});
  });
}

TransformerLayerOptions small_layer() {
  return {.hidden_size = 8,
          .ffn_hidden_size = 6,
          .num_attention_heads = 2,
          .hidden_dropout = 0,
          .attention_dropout = 0};
}

TEST_P(FiniteDifferences, transformer_layer_gradients) {
  expect_gradients_of_encoder(small_layer());
  TransformerLayerOptions parallel = small_layer();
  parallel.parallel_attention_mlp = true;
  parallel.fuse_qkv_params = true;
  parallel.bias = false;
  expect_gradients_of_encoder(parallel);
  TransformerLayerOptions post = small_layer();
  post.apply_residual_connection_post_layernorm = true;
  post.zero_centered_gamma = true;
  post.attn_input_format = "bshd";
  expect_gradients_of_encoder(post);
  TransformerLayerOptions normalizing = small_layer();
  normalizing.output_layernorm = true;
  expect_gradients_of_encoder(normalizing);
}

TEST_P(FiniteDifferences, decoder_layer_gradients) {
  TransformerLayerOptions options = small_layer();
  options.layer_type = "decoder";
  options.activation = "swiglu";
  options.normalization = "RMSNorm";
  options.num_gqa_groups = 1;
  const auto module = make<TransformerLayer>(options);
  const NamedLeaf x = input("hidden_states", {3, 2, 8}),
                  memory = input("encoder_output", {4, 2, 8});
  expect_gradients_of(*module, {x, memory}, GetParam(), [&] {
    return (*module)({.hidden_states = x.tensor, .encoder_output = memory.tensor});
  });
}

}  // namespace
}  // namespace telens
