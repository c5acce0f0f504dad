// Each tensor is read once, however many features and formats need it.
#include <ATen/record_function.h>
#include <gmock/gmock.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/quantization/block_scaling.h"
#include "hooks/engine/one_pass_engine.h"
#include "tests/features/training_fixture.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using testing::section;
using testing::SmallTraining;

// Counts the calls of operators, including torch's, during its lifetime.
class OperatorCounts {
 public:
  OperatorCounts()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback([](const at::RecordFunction& function) {
              ++counts()[function.name()];
              return std::unique_ptr<at::ObserverContext>();
            }).scopes({at::RecordScope::FUNCTION}))) {
    counts().clear();
  }
  ~OperatorCounts() { at::removeCallback(handle_); }

  int operator[](const std::string& name) const { return counts()[name]; }

  // For each operator that reads elements of a tensor: how many more calls there were than before.
  std::map<std::string, int> more_than(const std::map<std::string, int>& earlier) const {
    // Scales, which have one element, are made and converted by these; is_capturing reads no
    // element.
    const std::set<std::string> make_and_move{
        "aten::copy_", "aten::empty",         "aten::empty_like", "aten::empty_strided",
        "aten::fill_", "aten::full",          "aten::to",         "aten::zeros",
        "aten::zero_", "telens::is_capturing"};
    std::map<std::string, int> more;
    for (const auto& [name, count] : counts()) {
      const auto before = earlier.find(name);
      const int difference = count - (before == earlier.end() ? 0 : before->second);
      if (difference > 0 && !make_and_move.contains(name)) more[name] = difference;
    }
    return more;
  }
  std::map<std::string, int> all() const { return counts(); }

 private:
  static std::map<std::string, int>& counts() {
    static std::map<std::string, int> all;
    return all;
  }
  at::CallbackHandle handle_;
};

using OnePassTest = testing::SessionTest;

// A forward and backward pass of two layers reads 11 tensors: fc1 has no dgrad.
constexpr int kTensors = 11;
constexpr int kInputs = 6;

TEST_F(OnePassTest, features_share_one_read_and_one_amax_per_tensor) {
  const std::string first =
      "LogTensorStats:\n  enabled: True\n"
      "  tensors: [activation, weight, gradient, output, wgrad, dgrad]\n"
      "  stats: [min, max, mean, std, l1_norm, l2_norm, dynamic_range]\n"
      "LogFp8TensorStats:\n  enabled: True\n  tensors: [activation, weight, gradient]\n"
      "  stats: [underflows%, overflows%, mse, fp8_current_scaling_mse, "
      "fp8_current_scaling_underflows%]\n";
  SmallTraining training(testing::delayed_scaling(), /*micro_batches=*/1);
  std::map<std::string, int> plain;
  {
    const OperatorCounts counts;
    training.step();
    plain = counts.all();
  }
  debug::initialize(options(section(first)));
  const OperatorCounts observed;
  training.step();
  // Current scaling computes its scales from amaxes. No other operator is called that was not
  // before.
  const std::map<std::string, int> reads{{"telens::accumulate_statistics", kTensors},
                                         {"telens::amax", kInputs},
                                         {"telens::scale_from_amax", kInputs}};
  EXPECT_EQ(observed.more_than(plain), reads);
}

TEST_F(OnePassTest, a_tensor_that_nobody_asks_about_is_not_read) {
  debug::initialize(options(
      section("LogTensorStats: {enabled: True, tensors: [output], stats: [max], freq: 3}\n")));
  SmallTraining training(testing::delayed_scaling(), /*micro_batches=*/1);
  const OperatorCounts observed;
  for (int i = 0; i < 6; ++i) training.step();
  EXPECT_EQ(observed["telens::accumulate_statistics"], 2 * 2);  // two layers, iterations 0 and 3
}

TEST_F(OnePassTest, no_amax_is_read_where_delayed_scaling_knows_the_scale) {
  debug::initialize(options(section(
      "LogFp8TensorStats: {enabled: True, tensors: [activation], stats: [underflows%]}\n")));
  SmallTraining training(testing::delayed_scaling(), /*micro_batches=*/1);
  const OperatorCounts observed;
  training.step();
  EXPECT_EQ(observed["telens::accumulate_statistics"], 2);
  EXPECT_EQ(observed["telens::amax"], 0);
}

TEST_F(OnePassTest, the_health_of_a_scale_comes_from_the_same_read) {
  debug::initialize(options(
      section(
          "LogTensorStats: {enabled: True, tensors: [activation, weight, gradient], stats: [std]}\n"
          "LogFp8TensorStats: {enabled: True, tensors: [gradient], stats: [underflows%]}\n") +
      "ours:\n  enabled: True\n  layers: {layer_types: [all]}\n  telens:\n"
      "    ScaleHealth: {enabled: True, tensors: [activation, weight, gradient]}\n"));
  SmallTraining training(testing::delayed_scaling(), /*micro_batches=*/1);
  const OperatorCounts observed;
  training.step();
  EXPECT_EQ(observed["telens::statistics"] + observed["telens::accumulate_statistics"], kInputs);
  EXPECT_EQ(observed["telens::amax"], 0);
}

TEST_F(OnePassTest, block_codes_are_read_once_and_only_for_the_recipe) {
  SmallTraining training(testing::mxfp8_scaling(), /*micro_batches=*/1);
  int plain = 0;
  {
    const OperatorCounts counts;
    training.step();
    plain = counts["telens::quantize_mxfp8"];
  }
  debug::initialize(options(section(
      "LogTensorStats: {enabled: True, tensors: [activation], stats: [max]}\n"
      "LogFp8TensorStats: {enabled: True, tensors: [activation], stats: [mse, underflows%, "
      "mxfp8_mse, mse_columnwise, fp8_block_scaling_mse, fp8_block_scaling_mse_columnwise]}\n"
      "LogNvfp4TensorStats: {enabled: True, tensors: [activation], stats: [mse]}\n")));
  const OperatorCounts observed;
  training.step();
  // Two layers: each copy that runs is read once, and the tensor once for all what-if statistics.
  EXPECT_EQ(observed["telens::accumulate_statistics"], 2);
  EXPECT_EQ(observed["telens::accumulate_block_cast_statistics"], 2 * 2);
  EXPECT_EQ(observed["telens::accumulate_what_if_statistics"], 2);
  EXPECT_EQ(observed["telens::quantize_mxfp8"], plain);
  EXPECT_EQ(observed["telens::quantize_fp8_blocks"], 0);
  EXPECT_EQ(observed["telens::quantize_nvfp4"], 0);
}

// Returns the reason for which want() refuses a statistic of an activation with this operand in
// both orientations.
std::optional<std::string> left_out(StatisticsEngine& engine, const at::Tensor& x,
                                    const Operand& operand, const std::string& statistic) {
  const InspectTensorCall call{.tensor_name = TensorName::activation,
                               .tensor = &x,
                               .rowwise = &operand,
                               .columnwise = &operand,
                               .quantizer = nullptr,
                               .tensor_parallel = {}};
  const auto reading = engine.begin("fc", 0, call);
  const std::vector<std::string> names{"max", statistic};
  const std::optional<std::string> reason = reading->want(*engine.prepare(names));
  reading->read();
  return reason;
}

TEST(CopiesInBlocks, with_mismatched_shape_are_skipped) {
  SeriesTable series;
  const auto engine = make_statistics_engine(series);
  const at::Tensor x = at::ones({32, 64});
  const Operand own = MXFP8Quantizer(FormatId::e4m3).quantize(x);
  EXPECT_EQ(left_out(*engine, x, own, "mse"), std::nullopt);
  const Operand other = MXFP8Quantizer(FormatId::e4m3).quantize(at::ones({64, 64}));
  EXPECT_EQ(left_out(*engine, x, other, "mse"), "mse: the codes are of another shape");
  EXPECT_EQ(left_out(*engine, x, other, "mse_columnwise"),
            "mse_columnwise: the codes are of another shape");
}

}  // namespace
}  // namespace telens
