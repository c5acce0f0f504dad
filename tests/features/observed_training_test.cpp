// Looking changes nothing, and what is recorded is what a plain reference says of the tensors.
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <tuple>

#include "core/ops/quantize.h"
#include "tests/features/training_fixture.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using testing::FakeLayer;
using testing::Script;
using testing::section;
using testing::SmallTraining;
using testing::stored_values;
using testing::StoredValue;

constexpr int kSteps = 5;
constexpr int kMicroBatches = 2;

const char* const kObserveAll =
    "LogTensorStats:\n"
    "  enabled: True\n"
    "  tensors: [activation, weight, gradient, output, wgrad, dgrad]\n"
    "  stats: [min, max, mean, std, l1_norm, l2_norm, cur_amax, dynamic_range]\n"
    "LogFp8TensorStats:\n"
    "  enabled: True\n"
    "  tensors: [activation, weight, gradient]\n"
    "  stats: [underflows%, mse, scale_inv_min, scale_inv_max, fp8_current_scaling_mse]\n";
// In a section of their own: their namespace lets it overlap the other.
const char* const kMeasureGemms =
    "gemms:\n"
    "  enabled: True\n"
    "  layers: {layer_types: [all]}\n"
    "  telens:\n"
    "    PrecisionLedger: {enabled: True}\n"
    "    GemmError: {enabled: True, gemms: [fprop, dgrad, wgrad]}\n";
const char* const kDump =
    "DumpTensors:\n"
    "  enabled: True\n"
    "  tensors: [activation, weight, gradient, output, wgrad, dgrad]\n"
    "  high_precision_tensor: True\n"
    "  quantized_tensor: True\n";
constexpr int kBaseStatistics = 8, kCounters = 6, kGemmStatistics = 3;
// Five, and `saturated` of the running recipe; `saturated` of what-if current scaling comes along
// under its own name.
constexpr int kFp8Statistics = 7;

struct Case {
  const char* name;
  std::shared_ptr<const Recipe> (*recipe)();
};
const Case kCases[] = {{"bf16", [] { return std::shared_ptr<const Recipe>(); }},
                       {"delayed", testing::delayed_scaling},
                       {"current", testing::current_scaling}};

// Losses, weights and gradients of a run, and what the random generator gives after it.
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
                             public ::testing::WithParamInterface<Case> {};

TEST_P(ObservedTrainingTest, observing_everything_changes_no_bit) {
  const std::vector<at::Tensor> plain = train(GetParam());
  debug::initialize(options(section(std::string(kObserveAll) + kDump) + kMeasureGemms));
  const std::vector<at::Tensor> observed = train(GetParam());
  debug::end_debug();
  EXPECT_THAT(messages(), ::testing::Not(::testing::HasSubstr("switched off")));
  ASSERT_EQ(plain.size(), observed.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(at::equal(plain[i], observed[i])) << "result " << i;
  }

  // dgrad of the first layer does not exist: its input needs no gradient.
  const int tensors = 2 * 6 - 1;
  int expected = kSteps * tensors * (kBaseStatistics + kCounters);
  expected += kSteps * (2 * 3 - 1) * kGemmStatistics;
  const bool quantized = GetParam().recipe() != nullptr;
  // Unquantized only the what-if statistic and its counter remain.
  expected += kSteps * 2 * 3 * (quantized ? kFp8Statistics : 2);
  EXPECT_EQ(stored_values(folder.str()).size(), static_cast<std::size_t>(expected));
}

// ---- values

using Key = std::tuple<std::int64_t, std::string, std::string>;  // iteration, layer, tensor

// What a tap saw of one tensor: micro-batches side by side, in double.
struct Seen {
  std::vector<at::Tensor> values, decoded;
  std::vector<double> scales_inv;
};

std::map<std::string, double> reference(const Seen& seen) {
  const at::Tensor x = at::cat(seen.values);
  const double nonzero = x.count_nonzero().item<double>();
  const at::Tensor magnitudes = x.abs().masked_select(x != 0);
  std::map<std::string, double> all{
      {"min", x.min().item<double>()},
      {"max", x.max().item<double>()},
      {"mean", x.mean().item<double>()},
      {"std", x.std().item<double>()},
      {"l1_norm", x.abs().sum().item<double>()},
      {"l2_norm", x.norm().item<double>()},
      {"cur_amax", x.abs().max().item<double>()},
      {"dynamic_range",
       std::log2(magnitudes.max().item<double>()) - std::log2(magnitudes.min().item<double>())},
      {"zeros", static_cast<double>(x.numel()) - nonzero},
      {"nan", 0},
      {"posinf", 0},
      {"neginf", 0},
      {"nonfinite", 0},
      {"subnormals", 0},
  };
  if (seen.decoded.empty()) return all;
  const at::Tensor decoded = at::cat(seen.decoded);
  all["underflows%"] =
      100 * (nonzero - decoded.count_nonzero().item<double>()) / static_cast<double>(x.numel());
  all["mse"] = (decoded - x).pow(2).mean().item<double>();
  all["scale_inv_min"] = *std::ranges::min_element(seen.scales_inv);
  all["scale_inv_max"] = *std::ranges::max_element(seen.scales_inv);
  return all;
}

struct QuantizedCopy {
  at::Tensor values;  // FP32
  double scale_inv;
};

// What a GEMM of the tensor gets: where the first one does not run, the second one's copy.
std::optional<QuantizedCopy> quantized_copy(const InspectTensorCall& call) {
  if (call.rowwise == nullptr) return std::nullopt;
  const bool rowwise = is_quantized(*call.rowwise);
  if (!rowwise && !is_quantized(*call.columnwise)) return std::nullopt;
  const auto& quantized = std::get<QuantizedTensor>(rowwise ? *call.rowwise : *call.columnwise);
  const QuantizedData& data = rowwise ? quantized.rowwise : quantized.columnwise;
  const at::Tensor codes = rowwise ? data.codes : data.codes.t();
  return QuantizedCopy{
      ops::dequantize_fp8(codes, data.scale_inv, quantized.format, at::kFloat).contiguous(),
      data.scale_inv.item<float>()};
}

TEST_P(ObservedTrainingTest, recorded_values_are_those_of_a_double_precision_reference) {
  std::map<Key, Seen> seen;
  Script tap;
  tap.inspect_enabled = [](std::int64_t i, TensorName) { return RoutingAnswer{true, i + 1}; };
  tap.inspect = [&](const FeatureCall& at, const InspectTensorCall& call) {
    Seen& entry = seen[{at.iteration, std::string(at.layer_name),
                        std::string(telens::name_of(call.tensor_name))}];
    if (call.tensor_name == TensorName::weight && !entry.values.empty()) return;
    entry.values.push_back(call.tensor->to(at::kDouble).flatten());
    if (const auto quantized = quantized_copy(call)) {
      entry.decoded.push_back(quantized->values.to(at::kDouble).flatten());
      entry.scales_inv.push_back(quantized->scale_inv);
    }
  };
  features.add("Tap", tap);
  debug::initialize(options(section(std::string(kObserveAll) + "Tap: {enabled: True}\n")));
  train(GetParam());
  debug::end_debug();

  std::map<Key, std::map<std::string, double>> references;
  for (const auto& [key, each] : seen) references[key] = reference(each);
  int compared = 0;
  for (const StoredValue& stored : stored_values(folder.str())) {
    const auto& expected = references[{stored.iteration, stored.layer, stored.tensor}];
    const auto found = expected.find(stored.statistic);
    if (found == expected.end()) continue;
    EXPECT_NEAR(stored.value, found->second, 1e-4 * std::abs(found->second) + 1e-12)
        << stored.iteration << ' ' << stored.layer << ' ' << stored.tensor << ' '
        << stored.statistic;
    ++compared;
  }
  const bool quantized = GetParam().recipe() != nullptr;
  EXPECT_EQ(compared, kSteps * (11 * (kBaseStatistics + kCounters) + (quantized ? 6 * 4 : 0)));
}

INSTANTIATE_TEST_SUITE_P(Recipes, ObservedTrainingTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace telens
