// Observing a training changes none of its bits, and the records equal a plain reference computed
// from its tensors.
#include <gmock/gmock.h>

#include <map>
#include <tuple>
#include <vector>

#include "core/ops/block_quantize.h"
#include "core/ops/quantize.h"
#include "tests/features/observation_reference.h"
#include "tests/features/training_fixture.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using testing::ExpectedValues;
using testing::Observed;
using testing::ObservedCopy;
using testing::Script;
using testing::section;
using testing::SmallTraining;
using testing::stored_values;
using testing::StoredValue;

constexpr int kSteps = 5;
constexpr int kMicroBatches = 2;

// Every statistic of the features that read tensors, and for block recipes the two orientations.
const char* const kObserveAll =
    "LogTensorStats:\n"
    "  enabled: True\n"
    "  tensors: [activation, weight, gradient, output, wgrad, dgrad]\n"
    "  stats: [min, max, mean, std, l1_norm, l2_norm, numel, nan, posinf, neginf, nonfinite,\n"
    "    zeros, subnormals, cur_amax, dynamic_range,\n"
    "    max_blockwise_dynamic_range: {block_size: 16, dims: 1},\n"
    "    max_blockwise_dynamic_range: {block_size: 32, dims: 2}]\n"
    "LogFp8TensorStats:\n"
    "  enabled: True\n"
    "  tensors: [activation, weight, gradient]\n"
    "  stats: [underflows%, overflows%, saturated, scale_inv_min, scale_inv_max, mse,\n"
    "    fp8_current_scaling_underflows%, fp8_current_scaling_overflows%,\n"
    "    fp8_current_scaling_saturated, fp8_current_scaling_scale_inv_min,\n"
    "    fp8_current_scaling_scale_inv_max, fp8_current_scaling_mse,\n"
    "    fp8_delayed_scaling_underflows%, fp8_delayed_scaling_overflows%,\n"
    "    fp8_delayed_scaling_saturated, fp8_delayed_scaling_scale_inv_min,\n"
    "    fp8_delayed_scaling_scale_inv_max, fp8_delayed_scaling_mse,\n"
    "    mxfp8_mse, fp8_block_scaling_mse_columnwise]\n"
    "LogNvfp4TensorStats:\n"
    "  enabled: True\n"
    "  tensors: [activation, weight, gradient]\n"
    "  stats: [mse, mse_columnwise]\n"
    "DumpTensors:\n"
    "  enabled: True\n"
    "  tensors: [activation, weight, gradient, output, wgrad, dgrad]\n"
    "  high_precision_tensor: True\n"
    "  quantized_tensor: True\n";
// A second section for the same layers, which is allowed because it is in the namespace telens.
const char* const kObserveInOurNamespace =
    "ours:\n"
    "  enabled: True\n"
    "  layers: {layer_types: [all]}\n"
    "  telens:\n"
    "    PrecisionLedger: {enabled: True}\n"
    "    GemmError: {enabled: True, gemms: [fprop, dgrad, wgrad]}\n"
    "    ScaleHealth: {enabled: True, tensors: [activation, weight, gradient]}\n"
    "    BlockTelemetry: {enabled: True, tensors: [activation, weight, gradient]}\n"
    "    ValueHistogram:\n"
    "      enabled: True\n"
    "      tensors: [activation, weight, gradient, output, wgrad, dgrad]\n"
    "      bins: codes\n";

std::string observe_everything(const std::string& more = {}) {
  return section(kObserveAll + more) + kObserveInOurNamespace;
}

// The first layer has no dgrad: its input needs no gradient.
constexpr int kTensors = 2 * 6 - 1, kGemmInputs = 2 * 3, kGemms = 2 * 3 - 1;
constexpr int kBaseStatistics = 15 + 2, kCastStatisticsOfOne = 6, kGemmStatistics = 3;
constexpr int kHistograms = 1;  // one record each, in addition to their bins
// Four statistics of block recipes, each with the `saturated` of its cast.
constexpr int kOfBlocks = 4 * 2;
constexpr int kStatisticsOfMissingCast = 2;  // mse_columnwise and the cast's `saturated`
// Statistics of the one scale of a tensor, without those of jumps, which the first iteration cannot
// have.
constexpr int kScaleStatisticsOfOne = 5;
// Block records of one copy, including the histogram of its scales, and of two copies together.
constexpr int kBlockRecordsOfOne = 7 + 1, kBlockRecordsOfBoth = 2;

struct Case {
  const char* name;
  std::shared_ptr<const Recipe> (*recipe)();
};
const Case kCases[] = {{"bf16", [] { return std::shared_ptr<const Recipe>(); }},
                       {"delayed", testing::delayed_scaling},
                       {"current", testing::current_scaling},
                       {"mxfp8", testing::mxfp8_scaling},
                       {"blocks", testing::block_scaling},
                       {"nvfp4", testing::nvfp4_scaling}};

// Losses, weights and gradients of a run, and the next random number after it.
std::vector<at::Tensor> train(const Case& which) {
  SmallTraining training(which.recipe(), kMicroBatches);
  std::vector<at::Tensor> results;
  for (int i = 0; i < kSteps; ++i) {
    results.push_back(at::scalar_tensor(training.step(), at::kFloat));
    for (const at::Tensor& each : training.parameters()) {
      results.push_back(each.detach().clone());
      results.push_back(each.grad().clone());
    }
  }
  results.push_back(at::rand({8}));
  return results;
}

class ObservedTrainingTest : public testing::SessionTest,
                             public ::testing::WithParamInterface<Case> {
 protected:
  static bool runs_quantized() { return GetParam().recipe() != nullptr; }
  // "": none.
  static std::string running() {
    return runs_quantized() ? std::string(GetParam().recipe()->name()) : "";
  }
  static bool has_one_scale_a_tensor() {
    return running() == "fp8_delayed_scaling" || running() == "fp8_current_scaling";
  }
};

TEST_P(ObservedTrainingTest, observing_everything_changes_no_bit) {
  const std::vector<at::Tensor> plain = train(GetParam());
  debug::initialize(options(observe_everything()));
  const std::vector<at::Tensor> observed = train(GetParam());
  debug::end_debug();
  EXPECT_THAT(messages(), ::testing::Not(::testing::HasSubstr("is disabled")));
  ASSERT_EQ(plain.size(), observed.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(at::equal(plain[i], observed[i])) << "result " << i;
  }

  const int casts = 1 + (runs_quantized() ? 1 : 0) + (running() == "fp8_delayed_scaling" ? 1 : 0);
  // fc1 has no dgrad, so its gradient has no rowwise copy and its weight no columnwise one. Casts
  // that do not run have no records.
  const bool blocks = runs_quantized() && !has_one_scale_a_tensor();
  const int of_missing_cast =
      running() == "fp8_block_scaling" || running() == "nvfp4" ? kStatisticsOfMissingCast : 0;
  const int of_copies = (2 * kGemmInputs - 2) * kBlockRecordsOfOne +
                        (kGemmInputs - 2) * kBlockRecordsOfBoth - of_missing_cast;
  const int expected = kTensors * (kBaseStatistics + kHistograms) + kGemms * kGemmStatistics +
                       kGemmInputs * (casts * kCastStatisticsOfOne + kOfBlocks) +
                       (blocks ? of_copies : 0);
  const int of_scales =
      has_one_scale_a_tensor() ? kGemmInputs * (kSteps * kScaleStatisticsOfOne - 1) : 0;
  EXPECT_EQ(stored_values(folder.str()).size(),
            static_cast<std::size_t>(kSteps * expected + of_scales));
}

// ---- values

using Key = std::tuple<std::int64_t, std::string, std::string>;  // iteration, layer, tensor

ObservedCopy decoded_blocks(const QuantizedTensor& quantized, const QuantizedData& data) {
  const ops::BlockCodes codes{data.codes, data.scale_inv, data.tensor_scale};
  at::Tensor scales = data.scale_inv;
  if (quantized.mode == ScalingMode::mxfp8) scales = (scales.to(at::kDouble) - 127).exp2();
  if (quantized.mode == ScalingMode::nvfp4) {
    scales = scales.view(at::kFloat8_e4m3fn).to(at::kFloat) * data.tensor_scale;
  }
  return {ops::dequantize_blocks(codes, quantized.format, quantized.mode, at::kFloat), scales};
}

// The copy that a GEMM reads. If the first GEMM does not run, that is the second one's copy, unless
// its blocks lie across the elements or a random Hadamard transform has mixed them.
std::optional<ObservedCopy> quantized_copy(const InspectTensorCall& call) {
  if (call.rowwise == nullptr) return std::nullopt;
  const bool rowwise = is_quantized(*call.rowwise);
  if (!rowwise && !is_quantized(*call.columnwise)) return std::nullopt;
  const auto& quantized = std::get<QuantizedTensor>(rowwise ? *call.rowwise : *call.columnwise);
  const QuantizedData& data = rowwise ? quantized.rowwise : quantized.columnwise;
  if (quantized.mode != ScalingMode::tensor) {
    return rowwise ? std::optional(decoded_blocks(quantized, data)) : std::nullopt;
  }
  const at::Tensor codes = rowwise ? data.codes : data.codes.t();
  return ObservedCopy{
      ops::dequantize_fp8(codes, data.scale_inv, quantized.format, at::kFloat).contiguous(),
      data.scale_inv.clone()};  // the next step overwrites a kept weight
}

// The tensors that a hook sees in one micro-batch. Copied, because weights change later.
Observed observed(const InspectTensorCall& call) {
  Observed part{.x = call.tensor->reshape({-1, call.tensor->size(-1)}).clone()};
  if (call.quantizer == nullptr) return part;
  const FormatId format = call.quantizer->format();
  part.what_if = format == FormatId::e2m1 ? FormatId::e4m3 : format;
  part.copy = quantized_copy(call);
  if (part.copy && call.quantizer->mode() == ScalingMode::tensor) {
    const at::Tensor known = call.quantizer->known_scale();
    part.scale =
        known.defined() ? known.item<float>() : testing::get_current_scale(part.x, part.what_if);
  }
  return part;
}

TEST_P(ObservedTrainingTest, recorded_values_match_double_precision_reference) {
  std::map<Key, std::vector<Observed>> seen;
  Script tap;
  tap.inspect_enabled = [](std::int64_t i, TensorName) { return RoutingAnswer{true, i + 1}; };
  tap.inspect = [&](const FeatureCall& at, const InspectTensorCall& call) {
    std::vector<Observed>& parts = seen[{at.iteration, std::string(at.layer_name),
                                         std::string(telens::get_name(call.tensor_name))}];
    if (call.tensor_name == TensorName::weight && !parts.empty()) return;
    parts.push_back(observed(call));
  };
  features.add("Tap", tap);
  debug::initialize(options(observe_everything("Tap: {enabled: True}\n")));
  train(GetParam());
  debug::end_debug();

  std::map<Key, ExpectedValues> references;
  for (const auto& [key, parts] : seen) {
    references[key] =
        testing::expected_values(parts, *tensor_from_name(std::get<2>(key)), running());
  }
  int compared = 0;
  for (const StoredValue& stored : stored_values(folder.str())) {
    const auto& expected = references[{stored.iteration, stored.layer, stored.tensor}];
    const auto found = expected.find(stored.statistic);
    if (found == expected.end()) continue;
    EXPECT_NEAR(stored.value, found->second.value, found->second.bound)
        << stored.iteration << ' ' << stored.layer << ' ' << stored.tensor << ' '
        << stored.statistic;
    ++compared;
  }
  // With a block recipe four statistics are compared, except for the first layer's gradient, which
  // no dgrad reads. With one scale for each tensor there are six, and for delayed scaling six more
  // that name it. The what-if statistics of current scaling are always compared.
  const bool blocks = runs_quantized() && !has_one_scale_a_tensor();
  const int of_casts = kCastStatisticsOfOne + (has_one_scale_a_tensor() ? 6 : 0) +
                       (running() == "fp8_delayed_scaling" ? 6 : 0);
  EXPECT_EQ(compared, kSteps * (kTensors * kBaseStatistics + kGemmInputs * of_casts +
                                (blocks ? 4 * (kGemmInputs - 1) : 0)));
}

INSTANTIATE_TEST_SUITE_P(Recipes, ObservedTrainingTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace telens
