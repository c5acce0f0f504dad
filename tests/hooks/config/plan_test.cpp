#include "hooks/config/plan.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "core/base/error.h"
#include "tests/hooks/config/test_features.h"

namespace telens::config {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Watch records the statistics that it is asked for, and a counter; so do Free and Noise.
Descriptions descriptions() {
  Descriptions descriptions;
  const Descriptions known = test_descriptions();
  for (const FeatureDescriptionPtr& each : known.all()) {
    FeatureDescription description = *each;
    description.recorded = nothing_recorded;
    if (description.name == "Watch" || description.name == "Free" || description.name == "Noise") {
      description.recorded = [](const Selection& selection) {
        std::vector<std::string> names{"counter"};
        if (const Value* what = selection.parameters.find("what")) {
          for (const Value& each : what->as_list()) names.push_back(each.as_string());
        }
        return names;
      };
    }
    if (description.name == "Own") description.recorded = {};
    descriptions.add(std::move(description));
  }
  return descriptions;
}

const std::vector<std::string> kLayers{"layers.0.fc1", "layers.1.fc1", "layers.1.fc2", "head"};

Plan make_plan(std::string_view yaml, const std::vector<std::string>& layers = kLayers) {
  return make_plan(load_config_text(yaml, "f.yaml", descriptions()), layers);
}

std::string section(std::string_view layers, std::string_view features) {
  return fmt::format("s:\n  enabled: True\n  layers: {}\n  transformer_engine:\n    {}\n", layers,
                     features);
}

std::vector<std::string> texts(const Plan& plan) {
  std::vector<std::string> texts;
  for (const PlanRow& row : plan.rows) {
    texts.push_back(fmt::format("{} [{}] [{}] {}: {}", row.layer, row.gemm(), row.tensor(),
                                row.entry->written_name, row.when()));
  }
  return texts;
}

TEST(Plan, has_a_row_for_each_gemm_and_tensor_in_the_order_of_training) {
  const Plan plan = make_plan(section("{layer_types: fc2}", R"(Watch:
      enabled: True
      what: a
      tensors_struct: [{tensor: gradient, freq: 10}, {tensor: activation, start_step: 3}]
    Modify: {enabled: True, how: round, gemms: [dgrad, fprop], tensors: activation}
    Own: {enabled: True})"));
  EXPECT_THAT(texts(plan),
              ElementsAre("layers.1.fc2 [] [activation] Watch: every iteration, from 3",
                          "layers.1.fc2 [] [gradient] Watch: every 10 iterations",
                          "layers.1.fc2 [] [] Own: decided at run time",
                          "layers.1.fc2 [fprop] [activation] Modify: every iteration",
                          "layers.1.fc2 [dgrad] [activation] Modify: never: dgrad has no "
                          "activation"));
  EXPECT_TRUE(plan.rows[1].due(20));
  EXPECT_FALSE(plan.rows[1].due(25));
  EXPECT_FALSE(plan.rows[2].due(0));
  EXPECT_FALSE(plan.rows[4].due(0));
  EXPECT_EQ(plan.touched_layers(), 1U);
}

TEST(Plan, takes_a_layer_that_is_named_twice_once) {
  const Plan plan =
      make_plan(section("{layer_types: all}", "Layer: {enabled: True}"), {"b", "a", "b"});
  EXPECT_THAT(plan.layers, ElementsAre("b", "a"));
  EXPECT_EQ(plan.rows.size(), 2U);
}

std::vector<std::string> collect_warnings(std::string_view layers) {
  return make_plan(section(layers, "Layer: {enabled: True}")).warnings;
}

TEST(PlanWarnings, name_exact_names_that_no_layer_has_with_the_nearest) {
  EXPECT_THAT(collect_warnings("{exact_layer_names: [head, layers.1.fc3]}"),
              ElementsAre("f.yaml:3:38: section 's': no layer is called 'layers.1.fc3' (did you "
                          "mean 'layers.1.fc1'?)"));
}

TEST(PlanWarnings, name_a_pattern_numbers_and_types_that_fit_no_layer) {
  EXPECT_THAT(collect_warnings("{layer_name_regex_pattern: '^fc'}"),
              ElementsAre("f.yaml:3:12: section 's': the pattern is found in no layer's name"));
  EXPECT_THAT(collect_warnings("{layer_numbers: [0, 7, 5-9, 1-2]}"),
              ElementsAre("f.yaml:3:31: section 's': no layer has the number 7",
                          "f.yaml:3:34: section 's': no layer has a number from 5 to 9"));
  EXPECT_THAT(collect_warnings("{layer_types: [fc1, qkv]}"),
              ElementsAre("f.yaml:3:31: section 's': no layer's name contains 'qkv'"));
  EXPECT_THAT(collect_warnings("{layer_types: [fc2], layer_numbers: [0]}"),
              ElementsAre("f.yaml:3:12: section 's': no layer has one of the numbers and one of "
                          "the types: both must fit"));
  EXPECT_THAT(collect_warnings("{layer_types: all, layer_numbers: all}"), IsEmpty());
  EXPECT_THAT(make_plan(section("{layer_numbers: all}", "Layer: {enabled: True}"), {"x"}).warnings,
              ElementsAre("f.yaml:3:27: section 's': no layer's name has a number"));
}

TEST(PlanWarnings, name_keys_that_a_stronger_one_outranks) {
  EXPECT_THAT(collect_warnings("{layer_types: fc1, exact_layer_names: head, layer_numbers: 99}"),
              ElementsAre("f.yaml:3:12: section 's': 'layer_types' has no effect: "
                          "'exact_layer_names' decides",
                          "f.yaml:3:55: section 's': 'layer_numbers' has no effect: "
                          "'exact_layer_names' decides"));
  EXPECT_THAT(
      collect_warnings("{layer_types: fc1, layer_name_regex_pattern: head}"),
      ElementsAre(HasSubstr("'layer_types' has no effect: 'layer_name_regex_pattern' decides")));
}

TEST(PlanWarnings, name_a_section_without_features) {
  EXPECT_THAT(make_plan(section("{layer_types: all}", "Layer: {enabled: False}")).warnings,
              ElementsAre("f.yaml:1:1: section 's': no feature is enabled"));
}

TEST(PlanErrors, come_for_the_first_few_layers_that_two_sections_select) {
  std::vector<std::string> layers;
  for (int i = 0; i < 20; ++i) layers.push_back(fmt::format("layers.{}", i));
  const std::string rest =
      "\n  enabled: True\n  layers: {layer_types: all}\n"
      "  transformer_engine: {Layer: {enabled: True}}\n";
  try {
    make_plan("a:" + rest + "b:" + rest, layers);
    FAIL();
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_EQ(std::ranges::count(text, '\n'), 5) << text;
    EXPECT_THAT(text, HasSubstr("both select the layer 'layers.4'"));
    EXPECT_THAT(text, HasSubstr("... and the same for 15 more layers"));
  }
}

TEST(DescribeSchedule, is_short_and_says_every_range) {
  EXPECT_EQ(describe(Schedule()), "every iteration");
  EXPECT_EQ(describe(Schedule(10, {StepRange{}})), "every 10 iterations");
  EXPECT_EQ(describe(Schedule(1, {{5, 9}})), "every iteration, 5 to 9");
  EXPECT_EQ(describe(Schedule(2, {{-3, 20}, {80, std::nullopt}})),
            "every 2 iterations, 0 to 20 and from 80");
  EXPECT_EQ(describe(Schedule(2, {{5, 6}, {0, std::nullopt}})), "every 2 iterations");
}

// ---- the load

RecordLoad compute_load(std::string_view features, std::string_view layers = "{layer_types: all}") {
  return estimate_load(make_plan(section(layers, features)));
}

TEST(RecordLoad, endless_schedule_uses_the_long_term_rate) {
  const RecordLoad load = compute_load(
      "Watch: {enabled: True, what: [a, b], tensors: [activation, weight], freq: 10, start_step: "
      "5}");
  EXPECT_THAT(load.average, DoubleNear(4 * 2 * 3 / 10.0, 1e-12));
  EXPECT_EQ(load.first, 5);
  EXPECT_EQ(load.last, std::nullopt);
  EXPECT_EQ(load.most, 4 * 2 * 3);
  EXPECT_EQ(load.busiest, 10);
  EXPECT_EQ(load.text(),
            "2.4 records (11 bytes) a step on average from 5 on, at most 24 (113 bytes) in "
            "iteration 10, if every layer runs quantized");
}

TEST(RecordLoad, finite_schedule_uses_its_first_to_last_iteration) {
  const RecordLoad load = compute_load(
      "Watch: {enabled: True, what: a, tensors: weight, freq: 2, start_end_list: [[3, 10], [20, "
      "21]]}",
      "{exact_layer_names: head}");
  EXPECT_EQ(load.first, 4);
  EXPECT_EQ(load.last, 21);
  // 4, 6, 8, 10 and 20, two records each
  EXPECT_THAT(load.average, DoubleNear(10.0 / 18, 1e-12));
  EXPECT_EQ(load.most, 2);
}

TEST(RecordLoad, finds_rare_iterations_anywhere) {
  const RecordLoad load =
      compute_load("Watch: {enabled: True, what: a, tensors: weight, freq: 1000000, start_step: 5}",
                   "{exact_layer_names: head}");
  EXPECT_EQ(load.busiest, 1'000'000);
  EXPECT_THAT(load.average, DoubleNear(2e-6, 1e-18));
}

TEST(RecordLoad, counts_records_of_two_sections_once) {
  const Plan plan = make_plan(R"(s:
  enabled: True
  layers: {exact_layer_names: head}
  transformer_engine:
    Watch: {enabled: True, what: a, tensors: weight, freq: 2}
  base:
    Free: {enabled: True, tensors: weight}
t:
  enabled: True
  layers: {exact_layer_names: head}
  telens:
    Trigger: {enabled: True}
)");
  // The counter and a; and the counter of the program's own tensor with this name.
  EXPECT_EQ(records_in(plan, 0), 3);
  EXPECT_EQ(records_in(plan, 1), 1);
}

TEST(RecordLoad, names_uncounted_features) {
  const RecordLoad load = compute_load("Own: {enabled: True}");
  EXPECT_THAT(load.not_counted, ElementsAre("transformer_engine.Own"));
  EXPECT_EQ(load.text(), "nothing is recorded; not counted: transformer_engine.Own");
}

TEST(RecordLoad, unreachably_long_range_counts_as_endless) {
  for (const char* end : {"9223372036854775807", "9223372036854775806", "2000000000000"}) {
    const RecordLoad load = compute_load(
        fmt::format("Watch: {{enabled: True, what: a, tensors: weight, freq: 4, start_step: "
                    "8, end_step: {}}}",
                    end),
        "{exact_layer_names: head}");
    EXPECT_EQ(load.last, std::nullopt) << end;
    EXPECT_EQ(load.first, 8);
    EXPECT_DOUBLE_EQ(load.average, 2 / 4.0);
    EXPECT_EQ(load.most, 2);
  }
  const RecordLoad never = compute_load(
      "Watch: {enabled: True, what: a, tensors: weight, freq: 4, start_step: 9223372036854775807}");
  EXPECT_EQ(never.most, 0);
  EXPECT_EQ(never.average, 0);
}

// Watch is due 50 times and Noise 34 times, 17 times together.
TEST(RecordLoad, counts_all_rare_iterations_in_a_long_range) {
  const RecordLoad load = compute_load(
      R"(Watch: {enabled: True, what: a, tensors: weight, freq: 20000, end_step: 999999}
  telens:
    Noise: {enabled: True, gemms: fprop, tensors: weight, freq: 30000, end_step: 999999})",
      "{exact_layer_names: head}");
  EXPECT_DOUBLE_EQ(load.average, (50 + 50 + 34 - 17) / 1e6);  // a, and the counter of both
}

// Compares with counting every iteration of a long range.
TEST(RecordLoad, agrees_with_counting_for_schedules_of_every_kind) {
  for (const int freq : {1, 2, 3, 7}) {
    for (const int other : {1, 4, 5}) {
      for (const char* range :
           {"start_step: 3", "end_step: 40", "start_end_list: [[2, 9], [20, 33]]",
            "start_end_list: [[2, 9], [20, -1]]"}) {
        const Plan plan = make_plan(section(
            "{layer_types: all}",
            fmt::format("Watch: {{enabled: True, what: a, tensors_struct: [{{tensor: weight, freq: "
                        "{}, {}}}, {{tensor: gradient, freq: {}, end_step: 40}}]}}",
                        freq, range, other)));
        const RecordLoad load = estimate_load(plan);
        constexpr std::int64_t kLong = 3 * 4 * 5 * 7 * 10;
        const std::int64_t end = load.last ? *load.last + 1 : load.first + kLong;
        std::int64_t sum = 0, most = 0;
        for (std::int64_t i = 0; i < end; ++i) {
          const std::int64_t now = records_in(plan, i);
          most = std::max(most, now);
          if (i >= load.first) sum += now;
        }
        EXPECT_THAT(
            load.average,
            DoubleNear(static_cast<double>(sum) / static_cast<double>(end - load.first), 1e-9));
        EXPECT_EQ(load.most, most);
        EXPECT_EQ(records_in(plan, load.busiest), most);
      }
    }
  }
}

}  // namespace
}  // namespace telens::config
