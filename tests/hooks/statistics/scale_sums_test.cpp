// Statistics of a tensor's scale, and what is remembered from one iteration to the next.
#include "hooks/statistics/scales.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/base/error.h"
#include "hooks/statistics/catalogue.h"

namespace telens {
namespace {

constexpr double kLargest = 448;  // E4M3's

struct Given {
  double amax = 1;
  double scale_inv = 1;
  std::optional<std::int64_t> updates = std::nullopt;
  std::int64_t margin = 0;
  std::int64_t saturated = 0;
  std::int64_t infinities = 0;
  std::int64_t nan = 0;
};

ScaleRead get_read(const Given& given) {
  ScaleRead read;
  read.tensor.numel = read.cast.numel = 8;
  read.tensor.min = -given.amax;
  read.tensor.max = given.amax / 2;
  read.tensor.nan = given.nan;
  read.tensor.posinf = given.infinities;
  read.cast.saturated = given.saturated;
  read.cast.scale_inv_min = read.cast.scale_inv_max = given.scale_inv;
  read.origin = {kLargest, given.margin, given.updates};
  return read;
}

// Observes one tensor in successive iterations.
class Observer {
 public:
  ScaleSums see(std::int64_t iteration, const std::vector<Given>& reads) {
    std::vector<ScaleRead> all;
    for (const Given& each : reads) all.push_back(get_read(each));
    return memory_.add(iteration, all);
  }

 private:
  ScaleMemory memory_;
};

double value(StatisticId statistic, const ScaleSums& sums) {
  return finish(statistic, sums).value();
}

ScaleSums of_one(const Given& given) { return Observer().see(0, {given}); }

TEST(ScaleSums, measure_headroom_and_movement_of_the_amax) {
  // Room up to 448 / 64 = 7.
  const ScaleSums grown = of_one({.amax = 14, .scale_inv = 1.0 / 64});
  EXPECT_EQ(value(statistic("scale_headroom"), grown), -1);
  EXPECT_EQ(value(statistic("scale_staleness"), grown), 1);
  // With a margin of 2 the scale corresponds to an amax of 7 / 4.
  const ScaleSums fits = of_one({.amax = 1.75, .scale_inv = 1.0 / 64, .margin = 2});
  EXPECT_EQ(value(statistic("scale_headroom"), fits), 2);
  EXPECT_EQ(value(statistic("scale_staleness"), fits), 0);
}

TEST(ScaleSums, keep_the_worst_of_the_micro_batches_and_of_the_ranks) {
  Observer one, other;
  ScaleSums sums = one.see(0, {{.amax = 7}, {.amax = 28}, {.amax = 14}});
  EXPECT_EQ(value(statistic("scale_headroom"), sums), 4);
  merge(sums, other.see(0, {{.amax = 56}}));
  EXPECT_EQ(value(statistic("scale_headroom"), sums), 3);
  EXPECT_EQ(value(statistic("scale_staleness"), sums), -3);
}

TEST(ScaleSums, count_clipped_elements_except_infinities) {
  ScaleSums sums = of_one({.saturated = 3, .infinities = 1});
  EXPECT_EQ(value(statistic("stale_saturated%"), sums), 25);
  merge(sums, of_one({}));
  EXPECT_EQ(value(statistic("stale_saturated%"), sums), 12.5);
}

TEST(ScaleSums, zeros_do_not_affect_the_fit) {
  ScaleSums sums = of_one({.amax = 0});
  EXPECT_EQ(finish(statistic("scale_headroom"), sums), std::nullopt);
  EXPECT_EQ(finish(statistic("scale_staleness"), sums), std::nullopt);
  EXPECT_EQ(value(statistic("stale_saturated%"), sums), 0);
  merge(sums, of_one({.amax = 7}));
  EXPECT_EQ(value(statistic("scale_headroom"), sums), 6);
}

TEST(ScaleSums, never_lose_a_nan_and_see_an_infinity) {
  ScaleSums sums = of_one({.nan = 1});
  merge(sums, of_one({.amax = 1}));
  EXPECT_TRUE(std::isnan(value(statistic("scale_headroom"), sums)));
  EXPECT_TRUE(std::isnan(value(statistic("scale_staleness"), sums)));
  EXPECT_EQ(value(statistic("scale_headroom"), of_one({.amax = INFINITY})), -INFINITY);
}

TEST(ScaleSums, are_empty_for_an_empty_tensor) {
  ScaleMemory memory;
  const std::vector<ScaleRead> empty(1);
  const ScaleSums sums = memory.add(0, empty);
  for (const StatisticId each : statistics_from(StatisticSource::scale)) {
    EXPECT_EQ(finish(each, sums), std::nullopt) << each->name;
  }
}

TEST(ScaleSums, compare_the_scale_with_the_last_observed_iteration) {
  Observer observer;
  EXPECT_EQ(finish(statistic("scale_jump"), observer.see(0, {{.scale_inv = 1}})), std::nullopt);
  // The largest jump, up or down. A smaller scale_inv is a larger scale.
  EXPECT_EQ(value(statistic("scale_jump"), observer.see(5, {{.scale_inv = 0.5}, {.scale_inv = 4}})),
            -2);
  EXPECT_EQ(value(statistic("scale_jump"), observer.see(6, {{.scale_inv = 0.25}})), 4);
  EXPECT_EQ(value(statistic("scale_jump"), observer.see(7, {{.scale_inv = 0.25}})), 0);
}

TEST(ScaleSums, equal_jumps_up_and_down_keep_the_upward_jump) {
  for (const bool up_first : {true, false}) {
    Observer observer;
    observer.see(0, {{}});
    const Given up{.scale_inv = 0.5}, down{.scale_inv = 2};
    const ScaleSums sums =
        observer.see(1, up_first ? std::vector<Given>{up, down} : std::vector<Given>{down, up});
    EXPECT_EQ(value(statistic("scale_jump"), sums), 1) << up_first;
  }
}

TEST(ScaleSums, count_the_iterations_of_a_history_that_nobody_updates) {
  Observer observer;
  const auto age = [&](std::int64_t iteration, std::vector<Given> reads) {
    return value(statistic("scale_age"), observer.see(iteration, reads));
  };
  EXPECT_EQ(age(0, {{.updates = 3}}), 0);  // earlier updates are unknown
  EXPECT_EQ(age(1, {{.updates = 4}}), 0);
  EXPECT_EQ(age(2, {{.updates = 4}}), 1);
  EXPECT_EQ(age(12, {{.updates = 4}}), 11);
  EXPECT_EQ(age(13, {{.updates = 4}, {.updates = 5}}), 0);  // between two micro-batches
  EXPECT_EQ(age(14, {{.updates = 5}}), 1);
  EXPECT_EQ(age(15, {{}}), 0);  // a scale of current scaling
  EXPECT_EQ(age(16, {{}}), 0);
}

TEST(ScaleSums, merged_ranks_have_the_age_of_the_oldest) {
  Observer fresh, stuck;
  fresh.see(0, {{.updates = 1}});
  stuck.see(0, {{.updates = 1}});
  ScaleSums sums = fresh.see(7, {{.updates = 8}});
  merge(sums, stuck.see(7, {{.updates = 1}}));
  EXPECT_EQ(value(statistic("scale_age"), sums), 7);
}

TEST(ScaleSums, merging_with_empty_sums_changes_nothing) {
  Observer observer;
  observer.see(0, {{.updates = 1}});
  ScaleSums sums = observer.see(3, {{.amax = 7, .scale_inv = 2, .updates = 1, .saturated = 4}});
  ScaleSums merged;
  merge(merged, ScaleSums{});
  merge(merged, sums);
  merge(merged, ScaleSums{});
  for (const StatisticId each : statistics_from(StatisticSource::scale)) {
    EXPECT_EQ(finish(each, merged), finish(each, sums)) << each->name;
  }
  EXPECT_EQ(value(statistic("scale_jump"), merged), -1);
}

TEST(ScaleSums, refuse_a_statistic_that_is_not_of_a_scale) {
  EXPECT_THROW(finish(statistic("mse"), ScaleSums{}), InternalError);
}

}  // namespace
}  // namespace telens
