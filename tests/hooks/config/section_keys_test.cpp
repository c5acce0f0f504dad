// started_by and kept_by: which sections wait for which triggers.
#include <gmock/gmock.h>

#include "core/base/error.h"
#include "features/builtin_options.h"
#include "hooks/config/plan.h"

namespace telens::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Config load(const std::string& yaml) {
  return load_config_text(yaml, "f.yaml", features::builtin_descriptions());
}

std::string get_error(const std::string& yaml) {
  try {
    load(yaml);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string trigger(const std::string& actions, const std::string& enabled = "True") {
  return fmt::format(
      "alarm:\n  enabled: {}\n  layers: {{layer_types: all}}\n"
      "  telens:\n    Trigger: {{enabled: True, when: loss > 3{}}}\n",
      enabled, actions);
}

std::string logging(const std::string& name, const std::string& key,
                    const std::string& feature = "LogTensorStats") {
  return fmt::format(
      "{}:\n  enabled: True\n{}  layers: {{layer_types: all}}\n"
      "  transformer_engine:\n    {}: {{enabled: True, tensors: output, stats: max}}\n",
      name, key, feature);
}

const std::string kStarted = "  started_by: alarm\n";
const std::string kKept = "  kept_by: alarm\n";

TEST(SectionKeys, name_the_section_that_decides) {
  const Config config = load(trigger(", start: 5, write_last: 3") + logging("closer", kStarted) +
                             logging("ring", kKept));
  ASSERT_THAT(config.sections(), SizeIs(3));
  EXPECT_EQ(config.sections()[1].keys->started_by->section, "alarm");
  EXPECT_EQ(config.sections()[2].keys->kept_by->section, "alarm");
  EXPECT_FALSE(config.sections()[0].keys->waits());
}

TEST(SectionKeys, let_a_section_overlap_others) {
  const Config config =
      load(trigger(", start: 5") + logging("closer", kStarted) + logging("always", ""));
  EXPECT_THAT(config.entries_for("fc"), SizeIs(3));
  const Config without = load(logging("one", "") + logging("other", ""));
  EXPECT_THROW(without.entries_for("fc"), ConfigError);
}

TEST(SectionKeys, two_sections_that_modify_the_same_tensor_are_an_error) {
  const auto fake_quant = [](const std::string& name, const std::string& key) {
    return fmt::format(
        "{}:\n  enabled: True\n{}  layers: {{layer_types: all}}\n  transformer_engine:\n"
        "    FakeQuant: {{enabled: True, gemms: fprop, tensors: weight, quant_format: FP8E4M3}}\n",
        name, key);
  };
  const Config config =
      load(trigger(", start: 5") + fake_quant("first", kStarted) + fake_quant("second", ""));
  EXPECT_THROW(config.entries_for("fc"), ConfigError);
}

TEST(SectionKeys, that_cannot_be_meant_are_errors_at_their_place) {
  EXPECT_EQ(get_error(trigger(", start: 5") + logging("closer", "  started_by: alarn\n")),
            "f.yaml:5:53: section 'alarm': 'start' has no effect: no section has 'started_by: "
            "alarm'\nf.yaml:8:15: section 'closer': 'started_by': unknown section 'alarn' (did "
            "you mean 'alarm'?); the sections are 'alarm', 'closer'");
  EXPECT_THAT(get_error(logging("always", "") + logging("closer", "  started_by: always\n")),
              HasSubstr("the section 'always' does not have a feature that fires; add a "
                        "telens.Trigger to it"));
  EXPECT_THAT(get_error(trigger("") + logging("closer", kStarted)),
              HasSubstr("Trigger of the section 'alarm' (f.yaml:5:5) has no 'start: "
                        "<iterations>'"));
  EXPECT_THAT(get_error(trigger("") + logging("ring", kKept)),
              HasSubstr("has no 'write_last: <iterations>'"));
  EXPECT_THAT(get_error(trigger(", write_last: 5")), HasSubstr("'write_last' has no effect"));
  EXPECT_THAT(get_error(logging("closer", "  started_by: [alarm]\n")),
              HasSubstr("'started_by' must be the name of a section, not the list"));
  EXPECT_THAT(get_error(logging("closer", "  startedby: alarm\n")),
              HasSubstr("(did you mean 'started_by'?)"));
}

TEST(SectionKeys, kept_by_requires_only_statistics) {
  const std::string ring =
      "ring:\n  enabled: True\n  kept_by: alarm\n  layers: {layer_types: all}\n"
      "  transformer_engine:\n    DumpTensors: {enabled: True, tensors: output}\n";
  EXPECT_THAT(get_error(trigger(", write_last: 5") + ring),
              AllOf(HasSubstr("DumpTensors cannot be in a section that is 'kept_by' another"),
                    HasSubstr("namely of 'LogTensorStats', 'LogFp8TensorStats', "
                              "'LogNvfp4TensorStats', 'ScaleHealth'")));
}

TEST(SectionKeys, trigger_cannot_start_and_keep_the_same_section) {
  EXPECT_EQ(get_error(trigger(", start: 5, write_last: 5") + logging("closer", kStarted + kKept)),
            "f.yaml:9:12: section 'closer': 'started_by' and 'kept_by' both name 'alarm', which "
            "would write the kept records at the moment when it starts the section; split it "
            "into two sections, one with each key");
}

TEST(SectionKeys, give_no_budget_to_a_feature_that_fires) {
  std::string text = trigger("");
  text.insert(text.find("  layers"), "  budget: 3%\n");
  EXPECT_EQ(get_error(text),
            "f.yaml:6:5: section 'alarm': Trigger cannot be in a section with a 'budget', which "
            "may skip the iteration that it waits for; move it to a separate section");
}

TEST(SectionKeys, reject_ledger_expectations_in_a_section_with_a_budget) {
  const auto ledger = [](const std::string& parameters) {
    return "s:\n  enabled: True\n  budget: 3%\n  layers: {layer_types: all}\n  telens:\n" +
           fmt::format("    PrecisionLedger: {{enabled: True{}}}\n", parameters);
  };
  EXPECT_EQ(get_error(ledger("")), "");
  EXPECT_EQ(get_error(ledger(", expect: [FP8]")),
            "f.yaml:6:46: section 's': 'expect' of PrecisionLedger cannot be in a section with "
            "a 'budget', which may skip the iteration that it waits for; move it to a separate "
            "section");
}

TEST(SectionKeys, may_name_disabled_sections) {
  EXPECT_EQ(get_error(trigger(", start: 5", "False") + logging("closer", kStarted)), "");
  EXPECT_EQ(get_error("alarm:\n  enabled: True\n  layers: {layer_types: all}\n"
                      "  telens:\n    Trigger: {enabled: False}\n" +
                      logging("closer", kStarted)),
            "");
}

TEST(SectionKeys, that_make_a_section_wait_for_itself_are_an_error) {
  const std::string own =
      "alarm:\n  enabled: True\n  started_by: alarm\n  layers: {layer_types: all}\n"
      "  telens:\n    Trigger: {enabled: True, when: loss > 3, start: 5}\n";
  EXPECT_THAT(get_error(own), HasSubstr("'started_by': the section depends on itself"));
}

TEST(SectionKeys, show_in_a_plan_and_count_nothing) {
  const Config config = load(trigger(", start: 5, write_last: 2") + logging("closer", kStarted) +
                             logging("ring", kKept));
  const std::vector<std::string> layers{"fc"};
  const Plan plan = make_plan(config, layers);
  ASSERT_THAT(plan.rows, SizeIs(3));
  EXPECT_EQ(plan.rows[0].when(), "once 'alarm' fires: every iteration");
  EXPECT_EQ(plan.rows[1].when(), "every iteration, written once 'alarm' fires");
  EXPECT_EQ(plan.rows[2].when(), "every iteration");  // the trigger, which is of no tensor
  EXPECT_EQ(estimate_load(plan).average, 0);
}

}  // namespace
}  // namespace telens::config
