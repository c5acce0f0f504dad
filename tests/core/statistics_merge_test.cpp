// Merged statistics of parts equal those of the whole, however it is cut: micro-batches, ranks or
// chunks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/ops/statistics.h"
#include "tests/core/statistics_checks.h"

namespace telens {
namespace {

using namespace ops;  // the operators under test

using testing::Data;
using testing::expect_cast;
using testing::expect_counters_and_extremes;
using testing::expect_sums;
using testing::float_scale;
using testing::kInf;
using testing::kNan;
using testing::kSumsBound;
using testing::typed;
using testing::with_values;

class MergedStatisticsOf : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(17); }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, MergedStatisticsOf,
                         ::testing::Values(at::kBFloat16, at::kHalf, at::kFloat),
                         [](const auto& dtype) { return c10::toString(dtype.param); });

// Computes the statistics of each part and merges them in the given order.
StatisticsAccumulator merged_parts(const at::Tensor& x, const std::vector<std::int64_t>& cuts,
                                   const std::vector<std::size_t>& order,
                                   const StatisticsCasts& casts) {
  StatisticsAccumulator merged(casts.scales.size());
  for (const std::size_t i : order) {
    merged.merge(typed(statistics(x.slice(0, cuts[i], cuts[i + 1]), casts), casts.scales.size()));
  }
  return merged;
}

// Scales with which the data of the tests below underflow, overflow and saturate.
StatisticsCasts scales_that_lose() {
  return {{float_scale(4.6F), float_scale(300), float_scale(1e-3F)},
          {FormatId::e4m3, FormatId::e4m3, FormatId::e5m2}};
}

// Parts with different means; half of the data sets have NaN and infinities in some parts.
std::vector<Data> data_in_parts(at::ScalarType dtype, const std::vector<std::int64_t>& cuts) {
  std::vector<Data> all;
  for (const float mean : {0.0F, 100.0F, 1e4F}) {
    at::Tensor x = at::randn({cuts.back()}) + mean;
    for (std::size_t i = 0; i + 1 < cuts.size(); i += 2) {
      x.slice(0, cuts[i], cuts[i + 1]).sub_(2.5F * mean);
    }
    x = x.to(dtype);
    all.push_back({"mean " + std::to_string(mean), x});
    const std::int64_t middle = cuts[1] + (cuts[2] - cuts[1]) / 2;
    all.push_back({"with infinities", with_values(x.clone(), {{middle, kInf}, {0, -kInf}})});
    all.push_back({"with NaN and Inf", with_values(x.clone(), {{middle, kNan}, {0, kInf}})});
  }
  return all;
}

TEST_P(MergedStatisticsOf, parts_cut_at_chunks_merge_to_the_whole) {
  const StatisticsCasts casts = scales_that_lose();
  std::vector<std::int64_t> cuts{0, 3, 4, 30, 40};
  for (std::int64_t& each : cuts) each *= kStatisticsChunk;
  cuts.back() += 77;
  for (const Data& data : data_in_parts(GetParam(), cuts)) {
    SCOPED_TRACE(data.name);
    const auto accumulated = typed(statistics(data.x, casts), 3);
    const TensorSums& whole = accumulated.tensor();
    for (const std::vector<std::size_t>& order :
         std::vector<std::vector<std::size_t>>{{0, 1, 2, 3}, {3, 1, 0, 2}}) {
      const auto merged = merged_parts(data.x, cuts, order, casts);
      expect_counters_and_extremes(merged.tensor(), whole);
      EXPECT_NEAR(merged.tensor().sum, whole.sum, 1e-12 * whole.l1);
      EXPECT_NEAR(merged.tensor().l1, whole.l1, 1e-12 * whole.l1);
      EXPECT_NEAR(merged.tensor().sum_squares, whole.sum_squares, 1e-12 * whole.sum_squares);
      EXPECT_NEAR(merged.tensor().m2, whole.m2, 1e-10 * whole.m2);
      for (std::size_t i = 0; i < 3; ++i) {
        expect_cast(merged.casts()[i], accumulated.casts()[i], 1e-12);
      }
    }
  }
}

TEST_P(MergedStatisticsOf, parts_cut_anywhere_merge_to_the_whole_in_any_order) {
  const StatisticsCasts casts = scales_that_lose();
  const std::vector<std::int64_t> cuts{0, 1, 1000, 8193, 30'001, 50'000};
  for (const Data& data : data_in_parts(GetParam(), cuts)) {
    SCOPED_TRACE(data.name);
    const auto whole = typed(statistics(data.x, casts), 3);
    // The whole is also read in chunks and merged, so these counts are compared with torch's.
    ASSERT_EQ(whole.tensor().nan, data.x.isnan().sum().item<std::int64_t>());
    ASSERT_EQ(whole.tensor().posinf, data.x.isposinf().sum().item<std::int64_t>());
    ASSERT_EQ(whole.tensor().neginf, data.x.isneginf().sum().item<std::int64_t>());
    std::vector<std::size_t> order{0, 1, 2, 3, 4};
    do {
      const auto merged = merged_parts(data.x, cuts, order, casts);
      expect_counters_and_extremes(merged.tensor(), whole.tensor());
      expect_sums(merged.tensor(), whole.tensor());
      for (std::size_t i = 0; i < 3; ++i) {
        expect_cast(merged.casts()[i], whole.casts()[i], kSumsBound);
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

// The data above must have elements that are lost; otherwise the comparisons would be of zeros.
TEST_P(MergedStatisticsOf, the_parts_that_are_merged_lose_elements_in_every_way) {
  const auto whole = typed(
      statistics(data_in_parts(GetParam(), {0, 1, 1000, 50'000})[3].x, scales_that_lose()), 3);
  EXPECT_GT(whole.casts()[0].overflows, whole.casts()[0].saturated);
  EXPECT_GT(whole.casts()[0].saturated, 0);
  EXPECT_LT(whole.casts()[0].saturated, whole.casts()[0].numel);
  const auto centered = typed(
      statistics(data_in_parts(GetParam(), {0, 1, 1000, 50'000})[0].x, scales_that_lose()), 3);
  EXPECT_GT(centered.casts()[0].underflows, 0);
}

TEST_P(MergedStatisticsOf, micro_batches_keep_the_smallest_and_largest_scale) {
  const at::Tensor x = at::randn({1000}).to(GetParam());
  StatisticsAccumulator merged(1);
  for (const float scale : {4.0F, 32.0F, 0.5F, 8.0F}) {
    merged.merge(typed(statistics(x, {{float_scale(scale)}, {FormatId::e4m3}}), 1));
  }
  EXPECT_EQ(merged.casts()[0].scale_inv_min, 1 / 32.0);
  EXPECT_EQ(merged.casts()[0].scale_inv_max, 2.0);
  EXPECT_EQ(merged.casts()[0].numel, 4000);
}

TEST_P(MergedStatisticsOf, accumulating_reads_equals_merging_their_results) {
  const at::Tensor a = at::randn({10'000}).to(GetParam());
  const at::Tensor b = (at::randn({333}) - 2).to(GetParam());
  const StatisticsCasts casts{{float_scale(3), float_scale(0.1F)},
                              {FormatId::e4m3, FormatId::e5m2}};
  at::Tensor accumulator = empty_statistics(2, at::kCPU);
  accumulate_statistics(a, casts, accumulator);
  EXPECT_TRUE(at::equal(accumulator, statistics(a, casts)));
  accumulate_statistics(b, casts, accumulator);

  StatisticsAccumulator merged = typed(statistics(a, casts), 2);
  merged.merge(typed(statistics(b, casts), 2));
  EXPECT_EQ(merged.words(), typed(accumulator, 2).words());
}

}  // namespace
}  // namespace telens
