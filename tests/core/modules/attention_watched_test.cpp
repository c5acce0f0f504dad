// DotProductAttention with a listener: the order of the calls, and that it costs nothing where the
// listener wants nothing.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "core/modules/attention/dot_product_attention.h"
#include "core/ops/attention.h"
#include "tests/core/modules/recording_listener.h"
#include "tests/core/modules/same_tensor.h"

namespace telens {
namespace {

using test::RecordingListener;
using test::same_bits;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint16_t kAll = 0x7FFF;

DotProductAttention attention() {
  return DotProductAttention(
      {.num_attention_heads = 2, .kv_channels = {8}, .num_gqa_groups = 1, .qkv_format = "bshd"});
}

struct Leaves {
  at::Tensor query, key, value;

  std::vector<at::Tensor> all() const { return {query, key, value}; }
};

Leaves leaves() {
  at::manual_seed(1);
  return {at::randn({2, 5, 2, 8}).requires_grad_(), at::randn({2, 5, 1, 8}).requires_grad_(),
          at::randn({2, 5, 1, 8}).requires_grad_()};
}

at::Tensor forward(DotProductAttention& module, const Leaves& of) {
  return module.forward({.query_layer = of.query, .key_layer = of.key, .value_layer = of.value})[0];
}

TEST(WatchedAttention, inspects_in_training_order_and_changes_no_bit) {
  DotProductAttention module = attention();
  const Leaves plain = leaves();
  const at::Tensor expected = forward(module, plain);
  expected.square().sum().backward();

  const Leaves watched = leaves();
  RecordingListener listener({.inspect = kAll});
  std::map<TensorName, at::Tensor> seen;
  listener.inspected = [&](const InspectTensorCall& call) {
    if (call.tensor != nullptr) seen[call.tensor_name] = call.tensor->clone();
    EXPECT_EQ(call.scores != nullptr, call.tensor_name == TensorName::scores);
  };
  const at::Tensor output = forward(module, watched);
  EXPECT_THAT(listener.calls, ElementsAre("inspect query", "inspect key", "inspect value",
                                          "inspect scores", "inspect attention_output"));
  output.square().sum().backward();
  EXPECT_EQ(listener.calls.size(), 9);
  EXPECT_EQ(listener.calls[5], "inspect attention_output_gradient");
  EXPECT_EQ(listener.above_autograd, 0);

  EXPECT_TRUE(same_bits(output.detach(), expected.detach()));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(watched.all()[i].grad(), plain.all()[i].grad())) << i;
  }
  EXPECT_TRUE(same_bits(seen[TensorName::query], watched.query.detach()));
  EXPECT_TRUE(same_bits(seen[TensorName::key_gradient], watched.key.grad()));
  EXPECT_TRUE(same_bits(seen[TensorName::value_gradient], watched.value.grad()));
}

TEST(WatchedAttention, no_calls_without_a_session_or_due_feature) {
  DotProductAttention module = attention();
  forward(module, leaves());
  {
    RecordingListener listener(RoutingPlan{});
    forward(module, leaves()).sum().backward();
    EXPECT_EQ(listener.routed, 1);
    EXPECT_THAT(listener.calls, IsEmpty());
  }
  RecordingListener of_linear_layers({.inspect = 0b111111});
  forward(module, leaves()).sum().backward();
  EXPECT_THAT(of_linear_layers.calls, IsEmpty());
}

TEST(WatchedAttention, backward_after_session_end_makes_no_calls) {
  DotProductAttention module = attention();
  at::Tensor output;
  std::vector<std::string> calls;
  {
    RecordingListener listener({.inspect = kAll});
    output = forward(module, leaves());
    calls = listener.calls;
  }
  RecordingListener next({.inspect = kAll});
  output.sum().backward();
  EXPECT_EQ(calls.size(), 5);
  EXPECT_THAT(next.calls, IsEmpty());
}

TEST(WatchedAttention, empty_batch_is_not_inspected) {
  DotProductAttention module = attention();
  RecordingListener listener({.inspect = kAll});
  forward(module, {at::ones({0, 5, 2, 8}), at::ones({0, 5, 1, 8}), at::ones({0, 5, 1, 8})});
  EXPECT_EQ(listener.routed, 0);
}

}  // namespace
}  // namespace telens
