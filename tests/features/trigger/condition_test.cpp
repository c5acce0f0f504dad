// The conditions of a Trigger: their grammar, and the values that fulfil them.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "features/trigger/condition.h"

namespace telens::features {
namespace {

using Average = Condition::Average;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Relation = Condition::Relation;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Condition parsed(const char* text) {
  config::ErrorList errors;
  const std::vector<Condition> conditions = parse_conditions(config::Value(text), errors);
  EXPECT_EQ(errors.text(), "") << text;
  return conditions.at(0);
}

std::string get_error(const config::Value& value) {
  config::ErrorList errors;
  EXPECT_EQ(parse_conditions(value, errors).size(), 0U);
  return errors.text();
}

// ---- the grammar

TEST(Condition, compares_a_statistic_of_a_tensor_with_a_number) {
  const Condition condition = parsed("overflows% of gradient > 0.1");
  EXPECT_EQ(condition.statistic->statistic, statistic("overflows%"));
  EXPECT_EQ(condition.tensor, TensorName::gradient);
  EXPECT_EQ(condition.relation, Relation::above);
  EXPECT_EQ(condition.bound, 0.1);
  EXPECT_EQ(parsed("min of output<=-1e3").bound, -1000);
  EXPECT_EQ(parsed("min of output<=-1e3").relation, Relation::at_most);
  EXPECT_EQ(parsed("cur_amax >= 3").relation, Relation::at_least);
  EXPECT_EQ(parsed("std < 1").relation, Relation::below);
}

TEST(Condition, missing_tensor_selects_all_tensors_with_the_statistic) {
  EXPECT_THAT(get_tensors(parsed("mxfp8_mse > 1")),
              ElementsAre(TensorName::activation, TensorName::weight, TensorName::gradient));
  EXPECT_EQ(get_tensors(parsed("nonfinite > 0")).size(), kLinearTensors.size());
  EXPECT_THAT(get_tensors(parsed("nonfinite of dgrad > 0")), ElementsAre(TensorName::dgrad));
  EXPECT_EQ(get_tensors(parsed("loss > 3")).size(), 0U);
}

TEST(Condition, takes_scale_inv_for_the_largest_of_the_scales) {
  const Condition jumps = parsed("scale_inv jumps > 8x");
  EXPECT_EQ(jumps.statistic, parse_statistic_name("scale_inv_max"));
  EXPECT_EQ(jumps.text, "scale_inv jumps > 8x");
  EXPECT_EQ(parsed("mxfp8_scale_inv of weight drops > 2x").statistic,
            parse_statistic_name("mxfp8_scale_inv_max"));
  // Only the built-in name means the largest scale, not a program's own similar name.
  config::ErrorList errors;
  config::StatisticDescriptions plugin([](std::string_view) { return false; });
  plugin.add({.name = "my_scale_inv"});
  const auto own = parse_conditions(config::Value("my_scale_inv > 3"), errors, &plugin);
  EXPECT_EQ(own.at(0).statistic->statistic, plugin.find("my_scale_inv"));
}

TEST(Condition, knows_jumps_drops_and_spikes) {
  const Condition jumps = parsed("scale_inv_max jumps > 8x");
  EXPECT_EQ(jumps.relation, Relation::jumps);
  EXPECT_EQ(jumps.bound, 8);
  EXPECT_EQ(parsed("scale_inv_max drops > 8x").relation, Relation::drops);
  const Condition spikes = parsed("loss spikes > 2.5x");
  EXPECT_EQ(spikes.name, "loss");
  EXPECT_EQ(spikes.relation, Relation::spikes);
  EXPECT_EQ(spikes.bound, 2.5);
  EXPECT_EQ(spikes.average, Average::median);
  EXPECT_EQ(spikes.window, kSpikeWindow);
  const Condition of_mean = parsed("loss spikes > 2x mean of 20");
  EXPECT_EQ(of_mean.average, Average::mean);
  EXPECT_EQ(of_mean.window, 20U);
}

TEST(Condition, accepts_recorded_names_with_spaces) {
  EXPECT_EQ(parsed("recorded grad_norm > 3").name, "grad_norm");
  EXPECT_EQ(parsed("recorded norm of all > 3").name, "norm of all");
  EXPECT_FALSE(parsed("recorded max > 3").statistic.has_value());
}

TEST(Condition, typo_is_an_error_that_names_the_expected_syntax) {
  const std::pair<const char*, const char*> mistakes[] = {
      {"overflow% > 1",
       "is about 'overflow%', which is not a statistic (did you mean 'overflows%'?)"},
      {"grad_norm > 1", "a number that the program records is 'recorded grad_norm'"},
      {"max of gradiant > 1", "names the tensor 'gradiant' (did you mean 'gradient'?)"},
      {"overflows% of output > 1", "the statistic has 'activation', 'weight', 'gradient'"},
      {"max gradient > 1", "has 'gradient' in place of 'of' and a tensor"},
      {"max of gradient", "has no comparison ('>', '>=', '<', '<=', 'jumps', 'drops', 'spikes')"},
      {"max = 3", "has no comparison"},
      {"> 3", "does not name a statistic"},
      {"recorded > 3", "needs a name after 'recorded'"},
      {"loss now > 3", "has 'now' after 'loss'"},
      {"max > much", "compares with 'much', which is not a number"},
      {"max > nan", "compares with 'nan', which is not a number"},
      {"max > 1 2", "compares with '1 2', which is not a number"},
      {"max > 8x", "compares with '8x', which is not a number"},
      {"loss jumps 8x", "needs '> <factor>x' after 'jumps'"},
      {"loss jumps > 8", "has '8' for a factor; write a number of at least 1 and 'x'"},
      {"loss spikes > 0.5x", "has '0.5x' for a factor"},
      {"loss jumps > 8x mean", "has 'mean' after the factor"},
      {"loss spikes > 2x average", "has 'average' in place of 'median' or 'mean'"},
      {"loss spikes > 2x mean of 0", "has 'of 0' after 'mean'; write 'of' and a number of values"},
  };
  for (const auto& [text, message] : mistakes) {
    EXPECT_THAT(get_error(config::Value(text)), HasSubstr(message)) << text;
    EXPECT_THAT(get_error(config::Value(text)), HasSubstr("expected, for example,")) << text;
  }
  EXPECT_THAT(get_error(config::Value(3)), HasSubstr("a condition must be a string"));
  EXPECT_THAT(get_error(config::Value(config::Value::List{})), HasSubstr("'when' is empty"));
}

TEST(Condition, mistakes_of_a_list_come_all_at_once) {
  config::ErrorList errors;
  const config::Value list(config::Value::List{"maxx > 1", "max > 1", "minn < 1"});
  EXPECT_EQ(parse_conditions(list, errors).size(), 1U);
  EXPECT_EQ(errors.size(), 2U);
}

// ---- values

// Indices of the values that fulfil the condition.
std::vector<std::size_t> firing(const char* text, const std::vector<double>& values) {
  const Condition condition = parsed(text);
  ConditionHistory history(condition);
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (history.add(values[i])) indices.push_back(i);
  }
  return indices;
}

TEST(ConditionHistory, comparison_checks_every_value_separately) {
  EXPECT_THAT(firing("max > 2", {1, 2, 3, 2, kInfinity}), ElementsAre(2, 4));
  EXPECT_THAT(firing("max >= 2", {1, 2, 3}), ElementsAre(1, 2));
  EXPECT_THAT(firing("max < 2", {1, 2, -kInfinity}), ElementsAre(0, 2));
  EXPECT_THAT(firing("max <= 2", {1, 2, 3}), ElementsAre(0, 1));
}

TEST(ConditionHistory, nan_fulfils_every_condition) {
  for (const char* text :
       {"max > 2", "max < 2", "loss jumps > 2x", "loss drops > 2x", "loss spikes > 2x"}) {
    EXPECT_THAT(firing(text, {kNaN}), ElementsAre(0)) << text;
  }
}

TEST(ConditionHistory, jump_is_measured_from_the_last_finite_value) {
  EXPECT_THAT(firing("loss jumps > 8x", {1, 8, 65, 1, 9}), ElementsAre(2, 4));
  EXPECT_THAT(firing("loss drops > 8x", {64, 8, 0.9, 0}), ElementsAre(2, 3));
  EXPECT_THAT(firing("loss jumps > 8x", {1, kInfinity, 2}), ElementsAre(1));
  EXPECT_THAT(firing("loss jumps > 8x", {0, 100, -1, 100}), ElementsAre());
}

TEST(ConditionHistory, spike_is_measured_from_the_median_of_earlier_values) {
  const std::vector<double> values{1, 1.1, 0.9, 1, 1, 2.1, 1.9, 1};
  EXPECT_THAT(firing("loss spikes > 2x", values), ElementsAre(5));
  // Four values are too few for this condition.
  EXPECT_THAT(firing("loss spikes > 2x", {1, 1, 1, 1, 9, 9}), ElementsAre(5));
  EXPECT_THAT(firing("loss spikes > 2x median of 2", {1, 1, 9}), ElementsAre(2));
  EXPECT_THAT(firing("loss spikes > 2x", {1, 1, 1, 1, 1, kInfinity, 1}), ElementsAre(5));
  EXPECT_THAT(firing("loss spikes > 2x", {-1, -1, -1, -1, -1, 100}), ElementsAre());
}

TEST(ConditionHistory, median_is_robust_against_an_earlier_spike) {
  const std::vector<double> values{1, 1, 1, 1, 100, 3};
  EXPECT_THAT(firing("loss spikes > 2x median of 5", values), ElementsAre(5));
  EXPECT_THAT(firing("loss spikes > 2x mean of 5", values), ElementsAre());
}

TEST(ConditionHistory, a_window_moves_on) {
  EXPECT_THAT(firing("loss spikes > 2x mean of 2", {1, 1, 4, 4, 4}), ElementsAre(2));
}

TEST(ConditionHistory, describes_its_result_in_text) {
  const Condition condition = parsed("loss spikes > 2x median of 4");
  ConditionHistory history(condition);
  for (const double value : {1, 2, 3, 4}) history.add(value);
  EXPECT_EQ(history.add(10), "10, 4 times the median of 4 values, 2.5");
  const Condition jump = parsed("loss jumps > 2x");
  ConditionHistory jumps(jump);
  jumps.add(1);
  EXPECT_EQ(jumps.add(3), "3 after 1");
}

}  // namespace
}  // namespace telens::features
