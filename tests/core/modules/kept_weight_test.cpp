// Quantized weights that a layer keeps for its micro-batches, weights that are stored in FP8, and
// features that modify them.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/modules/linear/linear.h"
#include "core/quantization/autocast.h"
#include "core/quantization/block_scaling.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"
#include "tests/core/modules/recording_listener.h"
#include "tests/core/modules/same_tensor.h"

namespace telens {
namespace {

using test::RecordingListener;
using test::same_bits;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::uint32_t kBothWeightBits = RoutingPlan::get_bit(Gemm::fprop, TensorName::weight) |
                                          RoutingPlan::get_bit(Gemm::dgrad, TensorName::weight);
constexpr std::uint8_t kWeightBit = RoutingPlan::get_bit(TensorName::weight);

class KeptWeight : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(3); }

  static LinearOptions options() {
    LinearOptions options;
    options.in_features = 32;
    options.out_features = 16;
    options.bias = false;
    options.name = "fc";
    options.parameters.params_dtype = at::kBFloat16;
    options.parameters.device = at::kCPU;
    return options;
  }

  at::Tensor run(std::optional<bool> first_microbatch, bool fp8 = true) {
    AutocastOptions options;
    options.enabled = fp8;
    options.recipe = recipe_;
    Autocast autocast(options);
    return linear_.forward(LinearInputs{x_, first_microbatch, false, false})[0];
  }

  at::Tensor weight() { return *linear_.named_parameters().find("weight"); }

  void scale_weight(double factor) {
    const at::NoGradGuard no_grad;
    weight().mul_(factor);
  }

  std::shared_ptr<const Recipe> recipe_ = std::make_shared<const Float8CurrentScaling>();
  Linear linear_{options()};
  at::Tensor x_ = at::randn({16, 32}, at::kBFloat16).requires_grad_();
};

TEST_F(KeptWeight, updates_in_place_at_the_next_minibatch) {
  RecordingListener listener({.inspect = kWeightBit});
  std::vector<const void*> codes;
  listener.inspected = [&](const InspectTensorCall& call) {
    codes.push_back(std::get<QuantizedTensor>(*call.rowwise).rowwise.codes.const_data_ptr());
    codes.push_back(std::get<QuantizedTensor>(*call.columnwise).columnwise.codes.const_data_ptr());
  };
  run(true);
  scale_weight(-3);
  const at::Tensor updated = run(true);
  ASSERT_EQ(codes.size(), 4U);
  EXPECT_EQ(codes[2], codes[0]);
  EXPECT_EQ(codes[3], codes[1]);
  EXPECT_TRUE(same_bits(updated, run(std::nullopt)));
}

TEST_F(KeptWeight, update_before_a_backward_is_detected) {
  for (const bool watched : {false, true}) {
    std::optional<RecordingListener> listener;
    if (watched) listener.emplace(RoutingPlan{.inspect = kWeightBit});
    const at::Tensor output = run(true);
    run(true);
    EXPECT_THAT([&] { output.sum().backward(); },
                ThrowsMessage<std::exception>(HasSubstr("modified by an inplace operation")));
  }
}

TEST_F(KeptWeight, new_format_rebuilds_the_cache) {
  const auto run_in = [&](Fp8Format format, std::optional<bool> first) {
    AutocastOptions options;
    auto recipe = std::make_shared<Float8CurrentScaling>();
    recipe->fp8_format = format;
    options.recipe = recipe;
    const at::NoGradGuard no_grad;
    Autocast autocast(options);
    return linear_.forward(LinearInputs{x_, first, false, false})[0];
  };
  // The E4M3 weight stays cached. A GEMM with E5M2 activations must not use it, which would mix the
  // formats.
  const at::Tensor kept = run_in(Fp8Format::e4m3, true);
  EXPECT_TRUE(same_bits(run_in(Fp8Format::e4m3, false), kept));
  RecordingListener listener({.inspect = kWeightBit});
  std::vector<FormatId> formats;
  listener.inspected = [&](const InspectTensorCall& call) {
    formats.push_back(std::get<QuantizedTensor>(*call.rowwise).format);
  };
  EXPECT_THROW(run_in(Fp8Format::e5m2, false), UsageError) << "E5M2 x E5M2 has no product";
  EXPECT_EQ(formats, std::vector{FormatId::e5m2});
}

// What a feature returns for the weight: high precision outside of recipes, FP8 inside.
Operand negated(const ModifyTensorCall& call) {
  const at::Tensor value = call.tensor.neg();
  if (call.default_quantizer == nullptr) return value;
  const std::shared_ptr<Quantizer> quantizer = call.default_quantizer->copy();
  quantizer->set_usage({.rowwise = true, .columnwise = true});
  return quantizer->quantize(value);
}

TEST_F(KeptWeight, passes_the_cached_operand_to_its_feature) {
  for (const bool fp8 : {false, true}) {
    std::vector<bool> given;
    RecordingListener listener({.modify = kBothWeightBits}, [&](const ModifyTensorCall& call) {
      given.push_back(call.out != nullptr);
      return call.deliver(negated(call));
    });
    EXPECT_TRUE(same_bits(run(true, fp8), run(std::nullopt, fp8)));
    scale_weight(2);
    const at::Tensor updated = run(true, fp8);
    EXPECT_TRUE(same_bits(updated, run(std::nullopt, fp8)));
    EXPECT_TRUE(same_bits(updated, run(false, fp8)));
    // Two GEMMs each: first micro-batch, without cache, update, without cache, cached.
    const std::vector<bool> expected{false, false, false, false, true, true, false, false};
    EXPECT_EQ(given, expected);
  }
}

TEST_F(KeptWeight, nvfp4_update_includes_the_tensor_scale) {
  recipe_ = std::make_shared<const NVFP4BlockScaling>();
  RecordingListener listener({.modify = kBothWeightBits}, [](const ModifyTensorCall& call) {
    return call.deliver(negated(call));
  });
  run(true);
  scale_weight(2);  // the codes and block scales stay, the tensor's scale doubles
  const at::Tensor updated = run(true);
  EXPECT_TRUE(same_bits(run(false), updated));
  EXPECT_TRUE(same_bits(updated, run(std::nullopt)));
}

TEST_F(KeptWeight, other_block_options_rebuild_the_cache) {
  recipe_ = std::make_shared<const NVFP4BlockScaling>();
  const at::Tensor in_squares = run(true);
  auto in_lines = std::make_shared<NVFP4BlockScaling>();
  in_lines->disable_2d_quantization = true;
  recipe_ = in_lines;
  const at::Tensor kept = run(false);
  EXPECT_TRUE(same_bits(kept, run(std::nullopt)));
  EXPECT_FALSE(same_bits(kept, in_squares));
  scale_weight(3);
  EXPECT_TRUE(same_bits(run(false), kept));  // the rebuilt cache is used from then on
}

TEST_F(KeptWeight, other_scaling_rebuilds_the_cache) {
  const at::NoGradGuard evaluation;  // where delayed scaling keeps its scale
  const auto with = [](CurrentScalingOptions options) {
    auto recipe = std::make_shared<Float8CurrentScaling>();
    recipe->fp8_quant_fwd_weight = options;
    return recipe;
  };
  const auto plain = with({});
  const std::vector<std::shared_ptr<const Recipe>> others{with({.power_2_scale = true}),
                                                          with({.amax_epsilon = 1e3F}),
                                                          std::make_shared<const DelayedScaling>()};
  for (const auto& other : others) {
    SCOPED_TRACE(std::string(other->name()));
    recipe_ = plain;
    const at::Tensor before = run(true);
    recipe_ = with({});  // an equal recipe in another object
    scale_weight(2);
    EXPECT_TRUE(same_bits(run(false), before));
    recipe_ = other;
    const at::Tensor kept = run(false);
    EXPECT_TRUE(same_bits(kept, run(std::nullopt)));
    scale_weight(2);
    EXPECT_TRUE(same_bits(run(false), kept)) << "from then on it serves";
  }
}

TEST_F(KeptWeight, does_not_alias_the_parameter) {
  RecordingListener listener({.modify = kBothWeightBits}, [](const ModifyTensorCall& call) {
    if (call.out != nullptr) std::get<at::Tensor>(*call.out).zero_();
    return Operand(call.tensor);
  });
  const at::Tensor before = weight().detach().clone();
  run(true, /*fp8=*/false);
  EXPECT_EQ(run(true, /*fp8=*/false).abs().sum().item<float>(), 0) << "what was filled is not used";
  EXPECT_TRUE(same_bits(weight().detach(), before));
}

TEST_F(KeptWeight, features_modify_a_weight_stored_in_fp8) {
  const QuantizedTensor stored =
      CurrentScalingQuantizer(FormatId::e4m3).quantize(weight().detach());
  linear_.set_tensor("weight", at::zeros({1}, at::kBFloat16).expand({16, 32}).requires_grad_(),
                     stored);
  std::vector<const at::Tensor*> originals;
  RecordingListener listener({.modify = kBothWeightBits, .inspect = kWeightBit}, negated);
  listener.inspected = [&](const InspectTensorCall& call) { originals.push_back(call.tensor); };
  for (const bool fp8 : {false, true}) {
    const at::Tensor output = run(std::nullopt, fp8);
    hook_points::remove(&listener);
    const at::Tensor plain = run(std::nullopt, fp8);
    hook_points::install(&listener, 0);
    EXPECT_TRUE(at::allclose(output, -plain)) << "fp8: " << fp8;
    EXPECT_FALSE(plain.eq(0).all().item<bool>());
  }
  EXPECT_THAT(originals, ::testing::ElementsAre(nullptr, nullptr));
}

}  // namespace
}  // namespace telens
