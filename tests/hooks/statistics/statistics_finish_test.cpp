// From sums to recorded values: definitions, special values, merging, and which requests share a
// cast.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/base/error.h"
#include "hooks/statistics/catalogue.h"
#include "hooks/statistics/requests.h"

namespace telens {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// The sums of one element.
TensorSums element(double x) {
  TensorSums sums;
  sums.numel = 1;
  sums.nan = std::isnan(x);
  sums.posinf = x == kInf;
  sums.neginf = x == -kInf;
  sums.zeros = x == 0;
  if (std::isnan(x)) return sums;
  sums.min = sums.max = x;
  if (x != 0) sums.smallest_nonzero = std::fabs(x);
  if (std::isinf(x)) return sums;
  sums.sum = x;
  sums.l1 = std::fabs(x);
  sums.sum_squares = x * x;
  sums.moments = {1, x, 0, 0, 0};
  return sums;
}

TensorSums compute_sums(const std::vector<double>& values) {
  TensorSums sums;
  for (const double x : values) merge(sums, element(x));
  return sums;
}

void expect_value(StatisticId statistic, const std::vector<double>& values, double expected) {
  const double got = finish(statistic, compute_sums(values));
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(got)) << statistic->name << " is " << got;
  } else {
    EXPECT_DOUBLE_EQ(got, expected) << statistic->name;
  }
}

TEST(FinishedStatistics, are_the_definitions) {
  const std::vector<double> x{-3, 0, 1, 4};
  expect_value(statistic("min"), x, -3);
  expect_value(statistic("max"), x, 4);
  expect_value(statistic("mean"), x, 0.5);
  expect_value(statistic("std"), x, std::sqrt((12.25 + 0.25 + 0.25 + 12.25) / 3));
  expect_value(statistic("l1_norm"), x, 8);
  expect_value(statistic("l2_norm"), x, std::sqrt(26.0));
  expect_value(statistic("numel"), x, 4);
  expect_value(statistic("zeros"), x, 1);
  expect_value(statistic("cur_amax"), x, 4);
  expect_value(statistic("dynamic_range"), x, 2);
}

TEST(FinishedStatistics, hide_no_nan) {
  const std::vector<double> x{1, kNan, kInf};
  for (const StatisticId each : {statistic("min"), statistic("max"), statistic("mean"),
                                 statistic("std"), statistic("l1_norm"), statistic("l2_norm"),
                                 statistic("cur_amax"), statistic("dynamic_range")}) {
    expect_value(each, x, kNan);
  }
  expect_value(statistic("nan"), x, 1);
  expect_value(statistic("posinf"), x, 1);
  expect_value(statistic("nonfinite"), x, 2);
}

TEST(FinishedStatistics, infinities_follow_ieee_sums) {
  expect_value(statistic("mean"), {1, kInf}, kInf);
  expect_value(statistic("mean"), {1, -kInf}, -kInf);
  expect_value(statistic("mean"), {kInf, -kInf}, kNan);
  expect_value(statistic("std"), {1, 2, kInf}, kNan);
  expect_value(statistic("l1_norm"), {1, -kInf}, kInf);
  expect_value(statistic("l2_norm"), {1, -kInf}, kInf);
  expect_value(statistic("min"), {1, -kInf}, -kInf);
  expect_value(statistic("max"), {1, -kInf}, 1);
  expect_value(statistic("cur_amax"), {1, -kInf}, kInf);
  expect_value(statistic("dynamic_range"), {1, kInf}, kInf);
  expect_value(statistic("dynamic_range"), {0, kInf}, kNan);
}

TEST(FinishedStatistics, zeros_and_single_elements_have_defined_values) {
  expect_value(statistic("dynamic_range"), {0, 0}, 0);
  expect_value(statistic("cur_amax"), {0, 0}, 0);
  expect_value(statistic("std"), {7}, kNan);
  expect_value(statistic("std"), {7, 7}, 0);
  expect_value(statistic("dynamic_range"), {-8}, 0);
}

TEST(FinishedStatistics, empty_tensors_give_nan_except_for_counters) {
  expect_value(statistic("mean"), {}, kNan);
  expect_value(statistic("min"), {}, kNan);
  expect_value(statistic("nonfinite"), {}, 0);
  expect_value(statistic("numel"), {}, 0);
  EXPECT_TRUE(std::isnan(finish(statistic("mse"), CastSums{})));
}

TEST(FinishedStatistics, merged_shifted_parts_have_the_total_deviation) {
  // Transformer Engine's merged variance omits the distance between the means of the parts and is
  // NaN here.
  std::vector<double> low, high, all;
  for (int i = 0; i < 1000; ++i) {
    low.push_back(1e6 + i % 3 - 1);
    high.push_back(-1e6 + i % 5 - 2);
  }
  all = low;
  all.insert(all.end(), high.begin(), high.end());
  double mean = 0, m2 = 0;
  for (const double x : all) mean += x / static_cast<double>(all.size());
  for (const double x : all) m2 += (x - mean) * (x - mean);
  TensorSums merged = compute_sums(low);
  merge(merged, compute_sums(high));
  EXPECT_NEAR(finish(statistic("std"), merged), std::sqrt(m2 / static_cast<double>(all.size() - 1)),
              1e-6);
  EXPECT_NEAR(finish(statistic("std"), compute_sums(low)), std::sqrt(2.0 / 3), 1e-3);
}

TEST(FinishedStatistics, cast_statistics_count_all_elements) {
  CastSums sums{400, 3, 5, 4, 10.0, 0.25, 0.5};
  EXPECT_DOUBLE_EQ(finish(statistic("underflows%"), sums), 0.75);
  EXPECT_DOUBLE_EQ(finish(statistic("overflows%"), sums), 1.25);
  EXPECT_DOUBLE_EQ(finish(statistic("saturated"), sums), 4);
  EXPECT_DOUBLE_EQ(finish(statistic("mse"), sums), 0.025);
  EXPECT_DOUBLE_EQ(finish(statistic("scale_inv_min"), sums), 0.25);
  EXPECT_DOUBLE_EQ(finish(statistic("scale_inv_max"), sums), 0.5);
}

TEST(FinishedStatistics, block_statistics_give_the_largest_range) {
  BlockRanges ranges{10, 0, 8};
  merge(ranges, {3, 0, 32});
  merge(ranges, BlockRanges{});
  EXPECT_DOUBLE_EQ(finish(statistic("max_blockwise_dynamic_range"), ranges), 5);
  merge(ranges, {1, 1, 1});
  EXPECT_TRUE(std::isnan(finish(statistic("max_blockwise_dynamic_range"), ranges)));
}

TEST(FinishedStatistics, score_statistics_average_rows_with_a_choice) {
  ScoreSums sums{.blind = 2,
                 .nonfinite = 1,
                 .single = 1,
                 .choosing = 3,
                 .one_key = 2,
                 .first_key = 1,
                 .entropy = 1.5,
                 .share = 0.6};
  merge(sums, {.blind = 1, .choosing = 1, .one_key = 1, .entropy = 0.5, .share = 0.2});
  EXPECT_EQ(finish(statistic("attention_entropy"), sums), 0.5);
  EXPECT_NEAR(*finish(statistic("attention_entropy%"), sums), 20, 1e-12);
  EXPECT_EQ(finish(statistic("one_key%"), sums), 75);
  EXPECT_EQ(finish(statistic("first_key%"), sums), 25);
  EXPECT_EQ(finish(statistic("undefined%"), sums), 100.0 / 9);
  EXPECT_EQ(finish(statistic("blind%"), sums), 100.0 * 3 / 9);
}

TEST(FinishedStatistics, score_statistics_are_missing_without_a_valid_row) {
  EXPECT_EQ(finish(statistic("attention_entropy"), ScoreSums{.single = 4}), std::nullopt);
  EXPECT_EQ(finish(statistic("one_key%"), ScoreSums{.nonfinite = 4}), std::nullopt);
  EXPECT_EQ(finish(statistic("undefined%"), ScoreSums{.nonfinite = 4}), 100);
  EXPECT_EQ(finish(statistic("blind%"), ScoreSums{}), std::nullopt);
}

TEST(FinishedStatistics, refuse_to_be_taken_from_the_wrong_sums) {
  EXPECT_THROW(finish(statistic("mse"), TensorSums{1}), InternalError);
  EXPECT_THROW(finish(statistic("mean"), CastSums{1}), InternalError);
  EXPECT_THROW(finish(statistic("max_blockwise_dynamic_range"), TensorSums{1}), InternalError);
}

TEST(FinishedStatistics, rms_is_the_root_of_the_mean_square) {
  expect_value(statistic("rms"), {3, -4, 0, 5}, std::sqrt(12.5));
  expect_value(statistic("rms"), {-7}, 7);
  expect_value(statistic("rms"), {0, 0}, 0);
  expect_value(statistic("rms"), {1, -kInf}, kInf);
  expect_value(statistic("rms"), {1, kInf, kNan}, kNan);
  expect_value(statistic("rms"), {}, kNan);
  TensorSums merged = compute_sums({1e6, 1e6 + 1});
  merge(merged, compute_sums({-1e6, 2}));
  EXPECT_DOUBLE_EQ(finish(statistic("rms"), merged),
                   finish(statistic("rms"), compute_sums({1e6, 1e6 + 1, -1e6, 2})));
}

TEST(FinishedStatistics, zeros_percentage_is_relative_to_all_elements) {
  expect_value(statistic("zeros%"), {0, -0.0, 1, kNan}, 50);
  expect_value(statistic("zeros%"), {kInf, 1e-310}, 0);
  expect_value(statistic("zeros%"), {0}, 100);
  expect_value(statistic("zeros%"), {}, kNan);
  TensorSums merged = compute_sums({0, 5, 5});
  merge(merged, compute_sums({0}));
  EXPECT_DOUBLE_EQ(finish(statistic("zeros%"), merged), 50);
}

TEST(FinishedStatistics, kurtosis_is_the_fourth_standardized_moment) {
  expect_value(statistic("kurtosis"), {-1, 1}, 1);
  expect_value(statistic("kurtosis"), {0, 0, 0, 4}, 7.0 / 3);  // p = 1/4: (1 - 3 p q) / (p q)
  expect_value(statistic("kurtosis"), {1e9 - 1, 1e9 + 1}, 1);
  expect_value(statistic("kurtosis"), {7}, kNan);
  expect_value(statistic("kurtosis"), {3, 3, 3}, kNan);
  expect_value(statistic("kurtosis"), {1, 2, kInf}, kNan);
  expect_value(statistic("kurtosis"), {1, 2, kNan}, kNan);
  expect_value(statistic("kurtosis"), {}, kNan);
  TensorSums unread = compute_sums({1, 2, 5});
  unread.moments = {};
  EXPECT_TRUE(std::isnan(finish(statistic("kurtosis"), unread)));
}

TEST(Accumulators, survive_the_words_of_a_collective) {
  StatisticsAccumulator accumulator(1);
  std::vector<std::int64_t> words;
  append_words(words, compute_sums({1, 2, kNan}));
  append_words(words, CastSums{3, 1, 0, 0, kNan, 0.5, 0.5});
  accumulator.add(words);
  EXPECT_EQ(accumulator.words(), words);
  EXPECT_FALSE(accumulator.empty());
  EXPECT_THROW(accumulator.add(std::span(words).first(kTensorSumsWords)), UsageError);
  EXPECT_THROW(accumulator.merge(StatisticsAccumulator(2)), UsageError);
}

constexpr RunningCast kDelayedE5m2{RecipeId::fp8_delayed_scaling, FormatId::e5m2};

TEST(RequestSet, measures_each_cast_once) {
  RequestSet set;
  const auto mse = set.add({statistic("mse")}, kDelayedE5m2);
  const auto underflows = set.add({statistic("underflows%")}, kDelayedE5m2);
  const auto named =
      set.add({statistic("mse"), RecipeId::fp8_delayed_scaling}, kDelayedE5m2);  // the running one
  const auto what_if = set.add({statistic("mse"), RecipeId::fp8_current_scaling}, kDelayedE5m2);
  const auto again = set.add({statistic("mse")}, kDelayedE5m2);
  set.add({statistic("mean")}, kDelayedE5m2);

  const CastRequest delayed{RecipeId::fp8_delayed_scaling, FormatId::e5m2};
  const CastRequest current{RecipeId::fp8_current_scaling, FormatId::e5m2};
  EXPECT_THAT(set.casts(), ::testing::ElementsAre(delayed, current));
  EXPECT_EQ(mse->cast, 0U);
  EXPECT_EQ(underflows->cast, 0U);
  EXPECT_EQ(named->cast, 0U);
  EXPECT_EQ(what_if->cast, 1U);
  EXPECT_EQ(mse, again);
  EXPECT_EQ(set.requests().size(), 5U);
}

TEST(RequestSet, skips_statistics_that_need_a_running_recipe) {
  RequestSet set;
  EXPECT_EQ(set.add({statistic("mse")}, std::nullopt), std::nullopt);
  EXPECT_EQ(set.add({statistic("mse"), RecipeId::fp8_delayed_scaling}, std::nullopt), std::nullopt);
  EXPECT_TRUE(set.empty());
  ASSERT_TRUE(set.add({statistic("mse"), RecipeId::fp8_current_scaling}, std::nullopt));
  EXPECT_EQ(set.casts().front().format, FormatId::e4m3);
}

StatisticName get_mse(std::optional<RecipeId> recipe, bool columnwise = false) {
  return {.statistic = statistic("mse"), .what_if = recipe, .columnwise = columnwise};
}

TEST(RequestSet, measures_the_copies_of_a_block_recipe_apart) {
  RequestSet set;
  const RunningCast running{RecipeId::mxfp8, FormatId::e5m2};
  EXPECT_EQ(set.add(get_mse({}), running)->block_cast, 0U);
  EXPECT_EQ(set.add(get_mse(RecipeId::mxfp8), running)->block_cast, 0U);  // the running one
  EXPECT_EQ(set.add(get_mse({}, true), running)->block_cast, 1U);
  EXPECT_EQ(set.add(get_mse(RecipeId::fp8_block_scaling), running)->block_cast, 2U);
  EXPECT_EQ(set.add(get_mse(RecipeId::fp8_current_scaling), running)->cast, 0U);
  EXPECT_THAT(set.block_casts(),
              ::testing::ElementsAre(CastRequest{RecipeId::mxfp8, FormatId::e5m2},
                                     CastRequest{RecipeId::mxfp8, FormatId::e5m2, true},
                                     CastRequest{RecipeId::fp8_block_scaling, FormatId::e5m2}));
}

TEST(RequestSet, measures_the_only_copy_of_a_block_recipe_that_runs) {
  RequestSet set;
  const RunningCast second{RecipeId::mxfp8, FormatId::e4m3, false, true};
  const RunningCast first{RecipeId::mxfp8, FormatId::e4m3, true, false};
  ASSERT_TRUE(set.add(get_mse({}), second));
  EXPECT_TRUE(set.block_casts().front().columnwise);
  EXPECT_EQ(set.add(get_mse({}, true), first), std::nullopt);
  EXPECT_EQ(set.add(get_mse(RecipeId::mxfp8, true), first), std::nullopt);
  // A hypothetical cast has both copies.
  EXPECT_TRUE(set.add(get_mse(RecipeId::fp8_block_scaling, true), first));
}

TEST(RequestSet, finds_no_columnwise_copy_under_one_scale_a_tensor) {
  RequestSet set;
  EXPECT_EQ(set.add(get_mse({}, true), kDelayedE5m2), std::nullopt);
  EXPECT_EQ(set.add(get_mse({}, true), std::nullopt), std::nullopt);
  EXPECT_TRUE(set.empty());
}

TEST(RequestSet, measures_modified_codes_unless_the_recipe_is_named) {
  const RunningCast running{.recipe = RecipeId::fp8_delayed_scaling,
                            .format = FormatId::e4m3,
                            .altered = true,
                            .altered_format = FormatId::e5m2};
  const CastRequest altered{RecipeId::fp8_delayed_scaling, FormatId::e5m2, false, true};
  const CastRequest delayed{RecipeId::fp8_delayed_scaling, FormatId::e4m3};
  const CastRequest current{RecipeId::fp8_current_scaling, FormatId::e4m3};
  RequestSet set;
  EXPECT_EQ(set.add(get_mse({}), running)->cast, 0U);
  EXPECT_EQ(set.add({statistic("underflows%")}, running)->cast, 0U);
  EXPECT_EQ(set.add(get_mse(RecipeId::fp8_delayed_scaling), running)->cast, 1U);
  EXPECT_EQ(set.add(get_mse(RecipeId::fp8_current_scaling), running)->cast, 2U);
  EXPECT_THAT(set.casts(), ::testing::ElementsAre(altered, delayed, current));
  EXPECT_EQ(set.add(get_mse({}, true), running), std::nullopt);
}

TEST(RequestSet, uses_e4m3_for_fp8_and_e2m1_for_nvfp4) {
  RequestSet set;
  set.add(get_mse(RecipeId::mxfp8), RunningCast{RecipeId::nvfp4, FormatId::e2m1});
  set.add(get_mse(RecipeId::nvfp4), kDelayedE5m2);
  EXPECT_THAT(set.block_casts(),
              ::testing::ElementsAre(CastRequest{RecipeId::mxfp8, FormatId::e4m3},
                                     CastRequest{RecipeId::nvfp4, FormatId::e2m1}));
}

TEST(RequestSet, keeps_block_shapes_apart) {
  RequestSet set;
  const auto blocks = [&](BlockShape shape) {
    StatisticName name{statistic("max_blockwise_dynamic_range")};
    name.block = shape;
    return set.add(name, std::nullopt)->blocks;
  };
  EXPECT_EQ(blocks({32, 1}), 0U);
  EXPECT_EQ(blocks({32, 2}), 1U);
  EXPECT_EQ(blocks({32, 1}), 0U);
  EXPECT_EQ(set.blocks().size(), 2U);
}

}  // namespace
}  // namespace telens
