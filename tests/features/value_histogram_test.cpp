// ValueHistogram in a session: what it counts, when, and the contents of the run file.
#include <gmock/gmock.h>

#include <map>
#include <string>
#include <tuple>

#include "core/formats/convert.h"
#include "core/ops/histogram_layout.h"
#include "hooks/statistics/catalogue.h"
#include "hooks/statistics/histogram.h"
#include "tests/features/training_fixture.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using testing::FakeLayer;
using testing::SmallTraining;

using Bins = std::map<std::int64_t, std::int64_t>;

struct StoredHistogram {
  std::int64_t iteration;
  std::string layer, tensor, name;
  Bins bins;
  double elements;

  std::vector<BinCount> counts() const {
    std::vector<BinCount> list;
    for (const auto& [bin, count] : bins) list.push_back({bin, count});
    return list;
  }
};

std::vector<StoredHistogram> stored_histograms(const std::string& log_dir) {
  const record::RunReader run(log_dir);
  std::vector<StoredHistogram> all;
  run.read_histograms(
      {}, [&](int, const record::Record& record, std::span<const record::HistogramBin> bins) {
        StoredHistogram stored{record.iteration,
                               run.names(record::Dictionary::layer)[record.layer],
                               run.names(record::Dictionary::tensor)[record.tensor],
                               run.names(record::Dictionary::statistic)[record.statistic],
                               {},
                               record.value};
        for (const auto& [bin, count] : bins) stored.bins[bin] += static_cast<std::int64_t>(count);
        all.push_back(std::move(stored));
      });
  return all;
}

std::string section(const std::string& options) {
  return "section:\n"
         "  enabled: True\n"
         "  layers: {layer_types: [all]}\n"
         "  telens:\n"
         "    ValueHistogram:\n"
         "      enabled: True\n" +
         options;
}

std::int64_t get_code(float value) { return encode<BF16>(value, Saturation::saturating); }

class ValueHistogramTest : public testing::SessionTest {
 protected:
  std::vector<StoredHistogram> end_and_read() {
    debug::end_debug();
    return stored_histograms(folder.str());
  }
};

at::Tensor bf16(std::initializer_list<float> values) {
  return at::tensor(at::ArrayRef<float>(values), at::kFloat).to(at::kBFloat16);
}

TEST_F(ValueHistogramTest, codes_and_exponents_are_in_the_run_file) {
  debug::initialize(
      options(section("      tensors_struct:\n"
                      "        - {tensor: activation, bins: codes}\n"
                      "        - {tensor: weight}\n")));
  FakeLayer("layer").run(bf16({1, 1, -3, 0}));
  debug::step();
  const auto stored = end_and_read();
  ASSERT_EQ(stored.size(), 2U);
  EXPECT_EQ(stored[0].name, "code_histogram_bf16");
  EXPECT_EQ(stored[0].tensor, "activation");
  EXPECT_EQ(stored[0].bins, (Bins{{0, 1}, {get_code(1), 2}, {get_code(-3), 1}}));
  EXPECT_EQ(stored[1].name, "exponent_histogram_bf16");
  EXPECT_EQ(stored[1].tensor, "weight");
  // 2^0 lies 128 bins above zero, -2^1 129 below it.
  EXPECT_EQ(stored[1].bins, (Bins{{kZeroBin - 129, 1}, {kZeroBin, 1}, {kZeroBin + 128, 2}}));
  EXPECT_EQ(stored[1].elements, 4);
}

TEST_F(ValueHistogramTest, micro_batches_add_up_and_iterations_stay_apart) {
  debug::initialize(options(section("      tensors: [gradient]\n      freq: 2\n")));
  FakeLayer layer("layer");
  for (int iteration = 0; iteration < 4; ++iteration) {
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) layer.run(bf16({1, 0}));
    debug::step();
  }
  const auto stored = end_and_read();
  ASSERT_EQ(stored.size(), 2U);
  EXPECT_EQ(stored[0].iteration, 0);
  EXPECT_EQ(stored[1].iteration, 2);
  for (const StoredHistogram& each : stored) {
    EXPECT_EQ(each.bins, (Bins{{kZeroBin, 3}, {kZeroBin + 128, 3}}));
  }
}

TEST_F(ValueHistogramTest, a_weight_counts_once_an_iteration) {
  debug::initialize(options(section("      tensors: [weight]\n")));
  FakeLayer layer("layer");
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) layer.run(bf16({1, 0}));
  debug::step();
  const auto stored = end_and_read();
  ASSERT_EQ(stored.size(), 1U);
  EXPECT_EQ(stored[0].elements, 2);
}

TEST_F(ValueHistogramTest, fp32_tensors_get_exponents_with_one_warning) {
  debug::initialize(options(section("      tensors: [activation]\n      bins: codes\n")));
  FakeLayer("first").run(at::ones({4}));
  FakeLayer("second").run(at::ones({4}));
  debug::step();
  const auto stored = end_and_read();
  ASSERT_EQ(stored.size(), 2U);
  EXPECT_EQ(stored[0].name, "exponent_histogram_fp32");
  const std::string log = messages();
  EXPECT_THAT(log, ::testing::HasSubstr("WARNING"));
  EXPECT_EQ(log.find("WARNING"), log.rfind("WARNING"));
  EXPECT_THAT(log, ::testing::HasSubstr("has too many codes to count"));
}

TEST_F(ValueHistogramTest, skips_empty_tensors_and_keeps_an_unfinished_iteration) {
  debug::initialize(options(section("      tensors: [activation]\n")));
  FakeLayer layer("layer");
  layer.run(at::empty({0, 4}, at::kBFloat16));
  debug::step();
  layer.run(bf16({1}));
  const auto stored = end_and_read();
  ASSERT_EQ(stored.size(), 1U);
  EXPECT_EQ(stored[0].iteration, 1);
}

// The values of both features, by (iteration, layer, tensor, statistic).
using Values = std::map<std::tuple<std::int64_t, std::string, std::string, std::string>, double>;

TEST_F(ValueHistogramTest, histograms_give_the_statistics_of_a_training) {
  debug::initialize(
      options(section("      tensors: [activation, weight, gradient]\n"
                      "      bins: codes\n"
                      "  transformer_engine:\n"
                      "    LogTensorStats:\n"
                      "      enabled: True\n"
                      "      tensors: [activation, weight, gradient]\n"
                      "      stats: [min, max, cur_amax, l1_norm, std]\n"
                      "    LogFp8TensorStats:\n"
                      "      enabled: True\n"
                      "      tensors: [activation, weight, gradient]\n"
                      "      stats: [fp8_current_scaling_underflows%,\n"
                      "              fp8_current_scaling_scale_inv_max,\n"
                      "              fp8_current_scaling_mse]\n")));
  SmallTraining training(nullptr);
  for (int i = 0; i < 3; ++i) training.step();
  const auto histograms = end_and_read();
  Values logged;
  for (const auto& each : testing::stored_values(folder.str())) {
    logged[{each.iteration, each.layer, each.tensor, each.statistic}] = each.value;
  }
  EXPECT_EQ(histograms.size(), 3U * 2 * 3);
  for (const StoredHistogram& stored : histograms) {
    SCOPED_TRACE(fmt::format("{} {} {}", stored.iteration, stored.layer, stored.tensor));
    const auto value = [&](const std::string& statistic) {
      return logged.at({stored.iteration, stored.layer, stored.tensor, statistic});
    };
    const auto counts = stored.counts();
    const Histogram histogram{{HistogramBins::codes, FormatId::bf16}, counts};
    const TensorSums sums = compute_tensor_sums(histogram);
    EXPECT_EQ(finish(statistic("min"), sums), value("min"));
    EXPECT_EQ(finish(statistic("max"), sums), value("max"));
    EXPECT_EQ(finish(statistic("zeros"), sums), value("zeros"));
    EXPECT_EQ(finish(statistic("cur_amax"), sums), value("cur_amax"));
    EXPECT_NEAR(finish(statistic("l1_norm"), sums), value("l1_norm"), value("l1_norm") * 0x1p-16);
    EXPECT_NEAR(finish(statistic("std"), sums), value("std"), value("std") * 0x1p-14);
    // With several micro-batches an activation has several scales of current scaling, a weight only
    // one.
    if (stored.tensor != "weight") continue;
    const auto scale = static_cast<float>(448 / value("cur_amax"));
    const CastSums cast = compute_cast_sums(histogram, FormatId::e4m3, scale);
    EXPECT_EQ(cast.scale_inv_max, value("fp8_current_scaling_scale_inv_max"));
    EXPECT_EQ(finish(statistic("underflows%"), cast), value("fp8_current_scaling_underflows%"));
    EXPECT_NEAR(finish(statistic("mse"), cast), value("fp8_current_scaling_mse"),
                value("fp8_current_scaling_mse") * 0x1p-16);
  }
}

TEST_F(ValueHistogramTest, counting_changes_no_bit_of_a_training) {
  const auto train = [] {
    SmallTraining training(testing::current_scaling());
    std::vector<at::Tensor> results;
    for (int i = 0; i < 3; ++i) {
      results.push_back(at::scalar_tensor(training.step(), at::kFloat));
      for (const at::Tensor& each : training.parameters()) {
        results.push_back(each.detach().clone());
      }
    }
    results.push_back(at::rand({8}));
    return results;
  };
  const auto plain = train();
  debug::initialize(
      options(section("      tensors: [activation, weight, gradient, output, wgrad, dgrad]\n"
                      "      bins: codes\n")));
  const auto watched = train();
  EXPECT_EQ(end_and_read().size(), 3U * 11);  // the first layer has no dgrad
  ASSERT_EQ(plain.size(), watched.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(at::equal(plain[i], watched[i])) << "result " << i;
  }
}

TEST_F(ValueHistogramTest, other_bins_are_refused_with_their_place) {
  try {
    debug::initialize(options(section("      tensors: [activation]\n      bins: code\n")));
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("'bins'"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("codes"));
  }
}

}  // namespace
}  // namespace telens
