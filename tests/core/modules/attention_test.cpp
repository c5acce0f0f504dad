// DotProductAttention, MultiheadAttention and the rotary embedding.
#include "core/modules/attention/rotary_embedding.h"
#include "core/modules/module/module.h"
#include "core/modules/transformer/multihead_attention.h"
#include "tests/core/modules/module_reference.h"

namespace telens {
namespace {

using test::causal;
using test::Leaf;
using test::near;
using test::ReferenceParameters;

class Attention : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(5); }
};

struct Sequences {
  std::int64_t query = 6;
  std::int64_t key = 6;
  std::int64_t groups = 4;
};

struct QueryKeyValue {
  Leaf query, key, value;

  explicit QueryKeyValue(const Sequences& of)
      : query(at::randn({of.query, 2, 4, 8})),
        key(at::randn({of.key, 2, of.groups, 8})),
        value(at::randn({of.key, 2, of.groups, 8})) {}
};

// [batch, 1, 1, seq]: the last `count` positions of the second sequence are padding.
at::Tensor last_padded(std::int64_t sequence, std::int64_t count) {
  const at::Tensor mask = at::zeros({2, 1, 1, sequence}, at::kBool);
  mask[1].slice(-1, sequence - count).fill_(true);
  return mask;
}

void expect_as_reference(const DotProductAttentionOptions& options, const Sequences& sequences,
                         const std::vector<at::Tensor>& masks, const at::Tensor& allowed) {
  SCOPED_TRACE(options.attn_mask_type);
  const QueryKeyValue qkv(sequences);
  DotProductAttention module(options);
  const at::Tensor y = module.forward({.query_layer = qkv.query.tensor,
                                       .key_layer = qkv.key.tensor,
                                       .value_layer = qkv.value.tensor,
                                       .attention_mask = masks})[0];
  const at::Tensor expected = test::attention_reference(qkv.query.reference, qkv.key.reference,
                                                        qkv.value.reference, allowed);
  EXPECT_TRUE(near(y, expected, 1e-5, 1e-5));
  const at::Tensor grad = at::randn(y.sizes());
  y.backward(grad);
  expected.backward(grad.to(at::kDouble));
  EXPECT_TRUE(near(qkv.query.tensor.grad(), qkv.query.reference.grad().nan_to_num(), 1e-4, 1e-5));
  EXPECT_TRUE(near(qkv.key.tensor.grad(), qkv.key.reference.grad().nan_to_num(), 1e-4, 1e-5));
  EXPECT_TRUE(near(qkv.value.tensor.grad(), qkv.value.reference.grad(), 1e-4, 1e-5));
}

DotProductAttentionOptions with_mask(const std::string& type) {
  return {.num_attention_heads = 4, .kv_channels = {8}, .attn_mask_type = type};
}

TEST_F(Attention, equals_fp64_softmax_under_every_mask) {
  const Sequences longer{.query = 4, .key = 7};
  const at::Tensor all = at::ones({1, 1}, at::kBool);
  expect_as_reference(with_mask("no_mask"), longer, {}, all);
  expect_as_reference(with_mask("causal"), {}, {}, causal(6, 6));
  expect_as_reference(with_mask("causal"), longer, {}, causal(4, 7));
  expect_as_reference(with_mask("causal_bottom_right"), longer, {}, causal(4, 7, 3));

  const at::Tensor padding = last_padded(6, 2);
  const at::Tensor both = padding.transpose(2, 3).logical_or(padding).logical_not();
  expect_as_reference(with_mask("padding"), {}, {padding}, both);
  expect_as_reference(with_mask("padding_causal"), {}, {padding}, both.logical_and(causal(6, 6)));
  const at::Tensor queries = last_padded(4, 1), keys = last_padded(7, 3);
  expect_as_reference(with_mask("padding"), longer, {queries, keys},
                      queries.transpose(2, 3).logical_or(keys).logical_not());
  // In the first sample there are three more keys than queries, in the second one more.
  const at::Tensor diagonals = at::stack({causal(4, 7, 3), causal(4, 7, 1)}).unsqueeze(1);
  expect_as_reference(
      with_mask("padding_causal_bottom_right"), longer, {queries, keys},
      queries.transpose(2, 3).logical_or(keys).logical_not().logical_and(diagonals));

  const at::Tensor arbitrary = (at::rand({2, 4, 6, 6}) < 0.4);
  arbitrary.select(-1, 0).fill_(false);
  expect_as_reference(with_mask("arbitrary"), {}, {arbitrary}, arbitrary.logical_not());
}

TEST_F(Attention, grouped_heads_share_keys_and_values) {
  DotProductAttentionOptions options = with_mask("causal");
  options.num_gqa_groups = 2;
  expect_as_reference(options, {.groups = 2}, {}, causal(6, 6));
}

TEST_F(Attention, output_is_equal_in_both_formats) {
  const QueryKeyValue qkv({});
  DotProductAttention module(with_mask("causal"));
  const auto swapped = [](const Leaf& leaf) { return leaf.tensor.transpose(0, 1); };
  const at::Tensor sbhd = module.forward({.query_layer = qkv.query.tensor,
                                          .key_layer = qkv.key.tensor,
                                          .value_layer = qkv.value.tensor})[0];
  const at::Tensor bshd = module.forward({.query_layer = swapped(qkv.query),
                                          .key_layer = swapped(qkv.key),
                                          .value_layer = swapped(qkv.value),
                                          .qkv_format = "bshd"})[0];
  EXPECT_TRUE(near(bshd.transpose(0, 1), sbhd.to(at::kDouble), 1e-5, 1e-6));
}

TEST_F(Attention, rejects_unsupported_arguments) {
  DotProductAttention module(with_mask("padding"));
  const QueryKeyValue qkv({});
  DotProductAttentionInputs inputs{.query_layer = qkv.query.tensor,
                                   .key_layer = qkv.key.tensor,
                                   .value_layer = qkv.value.tensor};
  EXPECT_THROW(module.forward(inputs), UsageError);  // no mask
  inputs.attention_mask = {at::zeros({2, 1, 1, 5}, at::kBool)};
  EXPECT_THROW(module.forward(inputs), ShapeError);
  inputs.attention_mask = {at::zeros({2, 1, 1, 6})};
  EXPECT_THROW(module.forward(inputs), ShapeError);  // not boolean
  inputs.attn_mask_type = "casual";
  EXPECT_THROW(module.forward(inputs), UsageError);
  inputs.qkv_format = "thd";
  EXPECT_THROW(module.forward(inputs), UsageError);
}

TEST_F(Attention, dropout_only_in_training_with_torch_generator) {
  DotProductAttentionOptions options = with_mask("causal");
  options.attention_dropout = 0.5;
  DotProductAttention module(options);
  const QueryKeyValue qkv({});
  const auto run = [&] {
    at::manual_seed(9);
    return module.forward({.query_layer = qkv.query.tensor,
                           .key_layer = qkv.key.tensor,
                           .value_layer = qkv.value.tensor})[0];
  };
  const at::Tensor dropped = run();
  EXPECT_TRUE(at::equal(dropped, run()));
  module.eval();
  EXPECT_FALSE(at::equal(dropped, run()));
}

TEST(RotaryEmbedding, rotates_channel_pairs_by_position_and_frequency) {
  const at::Tensor angles = rotary_angles(5, 4);
  const at::Tensor x = at::randn({5, 2, 3, 6});
  const at::Tensor y = apply_rotary_embedding(x, angles, 1);
  for (const std::int64_t channel : {0, 1}) {
    const double frequency = std::pow(10000.0, -channel / 2.0);
    for (const std::int64_t position : {0, 1, 4}) {
      const double angle = static_cast<double>(position) * frequency;
      const at::Tensor a = x[position].select(-1, channel), b = x[position].select(-1, channel + 2);
      EXPECT_TRUE(near(y[position].select(-1, channel), a * std::cos(angle) - b * std::sin(angle),
                       1e-5, 1e-5));
      EXPECT_TRUE(near(y[position].select(-1, channel + 2),
                       b * std::cos(angle) + a * std::sin(angle), 1e-5, 1e-5));
    }
  }
  EXPECT_TRUE(at::equal(y.slice(-1, 4), x.slice(-1, 4)));  // beyond the rotated channels
  EXPECT_TRUE(at::equal(apply_rotary_embedding(x.transpose(0, 1), angles, 0).transpose(0, 1), y));
  EXPECT_THROW(apply_rotary_embedding(x, rotary_angles(4, 4), 1), ShapeError);
}

TEST(RotaryEmbedding, rejects_an_odd_number_of_channels) {
  EXPECT_THROW(rotary_angles(5, 3), UsageError);
  EXPECT_THROW(rotary_angles(5, 0), UsageError);
  EXPECT_THROW(apply_rotary_embedding(at::randn({5, 2, 3, 6}), at::ones({5, 1, 1, 3}), 1),
               ShapeError);
}

MultiheadAttentionOptions self_attention() {
  return {.hidden_size = 32,
          .num_attention_heads = 4,
          .attention_dropout = 0,
          .num_gqa_groups = 2,
          .input_layernorm = true};
}

// The projections of self attention from one stacked weight [q; k; v].
at::Tensor self_attention_reference(const at::Tensor& x, const ReferenceParameters& parameters,
                                    const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor normalized =
      test::norm_reference(x, parameters["layernorm_qkv.layer_norm_weight"],
                           parameters["layernorm_qkv.layer_norm_bias"]);
  const auto parts =
      test::linear_reference(normalized, weight, bias).split_with_sizes({32, 16, 16}, -1);
  const auto heads = [](const at::Tensor& part) { return part.unflatten(-1, {-1, 8}); };
  const at::Tensor attended =
      test::attention_reference(heads(parts[0]), heads(parts[1]), heads(parts[2]), causal(6, 6));
  return test::linear_reference(attended, parameters["proj.weight"], parameters["proj.bias"]);
}

void expect_equal_with_gradients(MultiheadAttention& module, const Leaf& x, const at::Tensor& y,
                                 const at::Tensor& expected,
                                 const ReferenceParameters& parameters) {
  EXPECT_TRUE(near(y, expected, 1e-5, 1e-5));
  const at::Tensor grad = at::randn(y.sizes());
  y.backward(grad);
  expected.backward(grad.to(at::kDouble));
  EXPECT_TRUE(near(x.tensor.grad(), x.reference.grad(), 1e-4, 3e-5));
  EXPECT_TRUE(parameters.gradients_near(module, 1e-4, 5e-5));
}

TEST_F(Attention, separate_parameters_equal_their_parts_in_fp64) {
  MultiheadAttention module(self_attention());
  test::randomize(module);
  const ReferenceParameters parameters(module);
  const auto stacked = [&](const std::string& kind) {
    return at::cat({parameters["layernorm_qkv.query_" + kind],
                    parameters["layernorm_qkv.key_" + kind],
                    parameters["layernorm_qkv.value_" + kind]});
  };
  const Leaf x(at::randn({6, 2, 32}));
  expect_equal_with_gradients(
      module, x, module.forward({.hidden_states = x.tensor})[0],
      self_attention_reference(x.reference, parameters, stacked("weight"), stacked("bias")),
      parameters);
}

TEST_F(Attention, fused_parameters_equal_their_parts_in_fp64) {
  for (const bool interleaved : {false, true}) {
    SCOPED_TRACE(interleaved);
    MultiheadAttentionOptions options = self_attention();
    options.fuse_qkv_params = true;
    options.qkv_weight_interleaved = interleaved;
    MultiheadAttention module(options);
    test::randomize(module);
    const ReferenceParameters parameters(module);
    // Interleaved weights: each group has two queries, a key and a value, of 8 rows each.
    const auto stacked = [&](const std::string& name) {
      const at::Tensor fused = parameters["layernorm_qkv." + name];
      if (!interleaved) return fused;
      const at::Tensor by_group = fused.unflatten(0, {2, 4, 8});
      return at::cat({by_group.slice(1, 0, 2).flatten(0, 2), by_group.select(1, 2).flatten(0, 1),
                      by_group.select(1, 3).flatten(0, 1)});
    };
    const Leaf x(at::randn({6, 2, 32}));
    expect_equal_with_gradients(
        module, x, module.forward({.hidden_states = x.tensor})[0],
        self_attention_reference(x.reference, parameters, stacked("weight"), stacked("bias")),
        parameters);
  }
}

TEST_F(Attention, cross_attention_equals_its_parts_in_fp64) {
  for (const bool fused : {false, true}) {
    MultiheadAttention module({.hidden_size = 32,
                               .num_attention_heads = 4,
                               .attention_dropout = 0,
                               .attn_mask_type = "no_mask",
                               .attention_type = "cross",
                               .fuse_qkv_params = fused,
                               .qkv_weight_interleaved = false});
    test::randomize(module);
    const ReferenceParameters parameters(module);
    const auto of = [&](const std::string& child, const std::vector<std::string>& parts,
                        const std::string& kind) {
      if (fused) return parameters[child + "." + kind];
      std::vector<at::Tensor> rows;
      for (const auto& part : parts) rows.push_back(parameters[child + "." + part + "_" + kind]);
      return at::cat(rows);
    };
    const Leaf x(at::randn({3, 2, 32})), memory(at::randn({5, 2, 32}));
    const at::Tensor query = test::linear_reference(
        x.reference, of("query_layer", {"query"}, "weight"), of("query_layer", {"query"}, "bias"));
    const auto key_value =
        test::linear_reference(memory.reference, of("key_value", {"key", "value"}, "weight"),
                               of("key_value", {"key", "value"}, "bias"))
            .chunk(2, -1);
    const auto heads = [](const at::Tensor& part) { return part.unflatten(-1, {-1, 8}); };
    const at::Tensor attended = test::attention_reference(
        heads(query), heads(key_value[0]), heads(key_value[1]), at::ones({1, 1}, at::kBool));
    const at::Tensor expected =
        test::linear_reference(attended, parameters["proj.weight"], parameters["proj.bias"]);
    expect_equal_with_gradients(
        module, x, module.forward({.hidden_states = x.tensor, .encoder_output = memory.tensor})[0],
        expected, parameters);
    EXPECT_TRUE(near(memory.tensor.grad(), memory.reference.grad(), 1e-4, 3e-5));
  }
}

TEST_F(Attention, joins_separate_parameters_without_a_copy) {
  MultiheadAttention module(self_attention());
  const at::Tensor x = at::randn({6, 2, 32});
  const auto parameters = module.named_parameters();
  const at::Tensor& query = parameters["layernorm_qkv.query_weight"];
  const at::Tensor& key = parameters["layernorm_qkv.key_weight"];
  EXPECT_TRUE(key.storage().is_alias_of(query.storage()));
  EXPECT_EQ(key.storage_offset(), query.numel());

  const at::Tensor before = module.forward({.hidden_states = x})[0];
  auto child = std::dynamic_pointer_cast<LayerNormLinear>(module.named_children()["layernorm_qkv"]);
  const at::Tensor replaced = key.detach().clone().set_requires_grad(true);
  child->set_tensor("key_weight", replaced);
  EXPECT_TRUE(at::equal(module.forward({.hidden_states = x})[0], before));
  module.forward({.hidden_states = x})[0].sum().backward();
  EXPECT_TRUE(replaced.grad().defined());
}

TEST_F(Attention, rejects_contradictory_options) {
  MultiheadAttentionOptions options = self_attention();
  options.attention_type = "sideways";
  EXPECT_THROW(MultiheadAttention{options}, UsageError);
  options = self_attention();
  options.num_attention_heads = 5;
  EXPECT_THROW(MultiheadAttention{options}, UsageError);
  options = self_attention();
  options.num_gqa_groups = 3;
  EXPECT_THROW(MultiheadAttention{options}, UsageError);
  MultiheadAttention module(self_attention());
  EXPECT_THROW(module.forward({.hidden_states = at::randn({12, 32})}), ShapeError);
}

}  // namespace
}  // namespace telens
