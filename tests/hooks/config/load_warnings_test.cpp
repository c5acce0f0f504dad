// Parts of a configuration that are allowed but rarely intended: loading warns of them.
#include <gmock/gmock.h>

#include "core/base/error.h"
#include "features/builtin_options.h"
#include "hooks/config/config.h"
#include "hooks/config/plan.h"

namespace telens::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::vector<std::string> collect_warnings(const std::string& features,
                                          const std::string& keys = "") {
  const std::string yaml = fmt::format(
      "s:\n  enabled: True\n{}  layers: {{layer_types: all}}\n  transformer_engine:\n    {}\n",
      keys, features);
  return load_config_text(yaml, "f.yaml", features::builtin_descriptions()).warnings();
}

std::string get_error(const std::string& features, const std::string& keys) {
  try {
    collect_warnings(features, keys);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string logging(const std::string& keys) {
  return fmt::format("LogTensorStats: {{enabled: True, stats: [max]{}}}", keys);
}

TEST(LoadWarnings, ranges_that_end_before_they_begin_name_place_and_remedy) {
  EXPECT_THAT(
      collect_warnings(logging(", tensors: [weight], start_end_list: [[0, 3], [20, 10]]")),
      ElementsAre(
          "f.yaml:5:95: section 's', feature 'LogTensorStats': the pair [20, 10] ends before "
          "it begins, so it selects no iteration; write [10, 20], or remove it"));
  EXPECT_THAT(collect_warnings(logging(", tensors: [weight], start_step: 10, end_step: 5")),
              ElementsAre(AllOf(StartsWith("f.yaml:5:"),
                                HasSubstr("'end_step' 5 comes before 'start_step' 10"))));
}

TEST(LoadWarnings, cover_a_range_with_one_end_next_to_a_struct) {
  EXPECT_THAT(
      collect_warnings(logging(
          ", start_step: 10, tensors_struct: [{tensor: weight, end_step: 5}, {tensor: output}]")),
      ElementsAre(HasSubstr("'end_step' 5 comes before 'start_step' 10")));
}

TEST(LoadWarnings, empty_list_warns_if_the_feature_still_runs) {
  EXPECT_THAT(collect_warnings(logging(", tensors: [weight], end_step: 3, start_end_list: []")),
              ElementsAre(HasSubstr("'start_end_list' is empty and replaces nothing: it runs every "
                                    "iteration, 0 to 3")));
}

TEST(LoadWarnings, name_keys_that_others_replace) {
  EXPECT_THAT(
      collect_warnings(logging(", tensors: [weight], start_step: 3, start_end_list: [[1, 2]]")),
      ElementsAre(HasSubstr("'start_step' has no effect: 'start_end_list'")));
  EXPECT_THAT(
      collect_warnings(logging(", tensors: [output], tensors_struct: [{tensor: weight}]")),
      ElementsAre(HasSubstr("'tensors' has no effect: the items of 'tensors_struct' replace it")));
  EXPECT_THAT(
      collect_warnings("FakeQuant: {enabled: True, quant_format: FP8E4M3, gemms: [wgrad], "
                       "tensors: [weight], gemms_struct: [{gemm: fprop}]}"),
      ElementsAre(HasSubstr("'gemms' has no effect: the items of 'gemms_struct' replace it")));
}

TEST(LoadWarnings, name_a_frequency_that_no_iteration_of_the_range_has) {
  EXPECT_THAT(
      collect_warnings(logging(", tensors: [weight], freq: 50, start_step: 1, end_step: 20")),
      ElementsAre(HasSubstr("no iteration is due: every 50 iterations, 1 to 20 has none")));
}

TEST(LoadWarnings, name_a_feature_none_of_whose_gemms_has_its_tensors) {
  EXPECT_THAT(collect_warnings("FakeQuant: {enabled: True, quant_format: FP8E4M3, gemms: [fprop], "
                               "tensors: [gradient]}"),
              ElementsAre(AllOf(StartsWith("f.yaml:5:5: section 's', feature 'FakeQuant': "),
                                HasSubstr("the gradient is not an operand or result of fprop, "
                                          "only of dgrad and wgrad"))));
  EXPECT_THAT(
      collect_warnings("FakeQuant: {enabled: True, quant_format: FP8E4M3, gemms: [fprop, wgrad], "
                       "tensors: [gradient]}"),
      IsEmpty());
}

TEST(LoadWarnings, name_a_condition_that_no_percentage_fulfills) {
  const std::string trigger =
      "LogTensorStats: {enabled: False}\n  telens:\n    Trigger: {enabled: True, when: ";
  EXPECT_THAT(collect_warnings(trigger + "'overflows% > 100'}"),
              ElementsAre(HasSubstr("holds only for NaN: overflows% is between 0 and 100")));
  EXPECT_THAT(collect_warnings(trigger + "'underflows% < 0'}"),
              ElementsAre(HasSubstr("only for NaN")));
  EXPECT_THAT(collect_warnings(trigger + "['overflows% > 99', 'cur_amax > 100', 'loss > 100']}"),
              IsEmpty());
}

TEST(LoadWarnings, are_part_of_a_plan) {
  const std::string yaml =
      "s:\n  enabled: True\n  layers: {layer_types: all}\n  transformer_engine:\n    " +
      logging(", tensors: [weight], start_step: 10, end_step: 5") + "\n";
  const Config config = load_config_text(yaml, "f.yaml", features::builtin_descriptions());
  const std::vector<std::string> layers{"fc1"};
  EXPECT_EQ(make_plan(config, layers).warnings, config.warnings());
}

TEST(LoadWarnings, sensible_configurations_have_none) {
  for (const char* keys : {"", ", freq: 3", ", start_step: 3, end_step: 3", ", end_step: -1",
                           ", start_end_list: null", ", start_end_list: [[0, 2], [8, -1]]"}) {
    EXPECT_THAT(collect_warnings(logging(std::string(", tensors: [weight, output]") + keys)),
                IsEmpty());
  }
}

// ---- mode: which forwards a section looks at

TEST(SectionMode, is_train_eval_or_both) {
  EXPECT_EQ(get_error(logging(", tensors: [output]"), "  mode: both\n"), "");
  EXPECT_EQ(get_error(logging(", tensors: [output]"), "  mode: train\n"), "");
  EXPECT_THAT(get_error(logging(", tensors: [output]"), "  mode: evl\n"),
              AllOf(StartsWith("f.yaml:3:9: section 's'"),
                    HasSubstr("'mode' must be one of 'train', 'eval', 'both', not the string 'evl' "
                              "(did you mean 'eval'?)")));
}

TEST(SectionMode, evaluation_requires_features_that_record_it_separately) {
  EXPECT_THAT(
      get_error("FakeQuant: {enabled: True, quant_format: FP8E4M3, gemms: [fprop], tensors: "
                "[weight]}",
                "  mode: both\n"),
      AllOf(StartsWith("f.yaml:3:9:"), HasSubstr("is not supported for FakeQuant (f.yaml:6:5)"),
            HasSubstr("'LogTensorStats'")));
}

}  // namespace
}  // namespace telens::config
