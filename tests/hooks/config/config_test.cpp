#include "hooks/config/config.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <fstream>

#include "core/base/error.h"
#include "tests/hooks/config/test_features.h"

namespace telens::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// "gemm tensor parameters" of every selection of the only feature of a layer.
std::vector<std::string> list_selections(std::string_view features) {
  const Config config = load(with_features(features));
  std::vector<std::string> texts;
  for (const Selection& selection : config.entries_for("x").at(0)->selections) {
    texts.push_back(fmt::format("{} {} {}", selection.gemm ? get_name(*selection.gemm) : "-",
                                selection.tensor.value_or("-"), to_json(selection.parameters)));
  }
  return texts;
}

std::vector<std::string> names(const std::vector<const FeatureEntry*>& entries) {
  std::vector<std::string> names;
  for (const FeatureEntry* entry : entries) {
    names.push_back(entry->section + '/' + qualified_name(*entry->description));
  }
  return names;
}

TEST(Config, an_empty_text_selects_nothing) {
  EXPECT_THAT(load("").entries_for("x"), IsEmpty());
  EXPECT_THAT(load("{}").entries_for("x"), IsEmpty());
  EXPECT_THAT(Config().entries_for("x"), IsEmpty());
}

TEST(Config, a_disabled_section_or_feature_is_left_out_unread) {
  const Config config = load(R"(
off: {enabled: False, nonsense: [1]}
on:
  enabled: True
  layers: {layer_types: all}
  transformer_engine:
    Watch: {enabled: False, nonsense: 1}
)");
  EXPECT_THAT(config.entries_for("x"), IsEmpty());
  EXPECT_EQ(config.sections().size(), 1U);
}

TEST(Config, features_come_in_the_order_of_the_text_from_any_namespace) {
  const Config config = load(R"(
s:
  enabled: True
  layers: {layer_types: all}
  Free: {enabled: True, tensors: [anything]}
  telens:
    Trigger: {enabled: True}
  transformer_engine:
    Own: {enabled: True, any: {thing: 1}}
    Alter: {enabled: True, gemms: fprop, tensors: weight, how: round}
)");
  const auto entries = config.entries_for("x");
  EXPECT_THAT(names(entries),
              ElementsAre("s/base.Free", "s/telens.Trigger", "s/transformer_engine.Own",
                          "s/transformer_engine.Modify"));
  EXPECT_EQ(entries[3]->written_name, "Alter");
  EXPECT_EQ(to_string(entries[3]->location), "f.yaml:10:5");
  EXPECT_EQ(to_json(entries[2]->config), R"({"enabled": true, "any": {"thing": 1}})");
}

TEST(Config, the_base_namespace_may_be_written_out) {
  const Config config =
      load("s: {enabled: on, layers: {layer_types: all}, base: {Free: {enabled: on, tensors: t}}}");
  EXPECT_THAT(names(config.entries_for("x")), ElementsAre("s/base.Free"));
}

TEST(Config, a_copy_keeps_the_entries_alive) {
  std::vector<const FeatureEntry*> entries;
  Config copy;
  {
    const Config config = load(with_features("    Layer: {enabled: True}\n"));
    entries = config.entries_for("x");
    copy = config;
  }
  EXPECT_EQ(copy.entries_for("x"), entries);
  EXPECT_EQ(entries.at(0)->written_name, "Layer");
}

TEST(Config, keeps_the_text_that_was_loaded) {
  const std::string text = with_features("    Layer: {enabled: True}  # why\n");
  EXPECT_EQ(load(text).text(), text);
}

TEST(Config, a_tree_of_values_is_loaded_like_text) {
  const Value layers(Value::Map{{"layer_types", "all"}});
  const Value watch(Value::Map{{"enabled", true}, {"tensors", "weight"}, {"whatt", "a"}});
  const Value section(Value::Map{{"enabled", true},
                                 {"layers", layers},
                                 {"transformer_engine", Value(Value::Map{{"Watch", watch}})}});
  try {
    load_config_value(Value(Value::Map{{"s", section}}), shared_descriptions());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("config: section 's', feature 'Watch': unknown key "
                                        "'whatt' (did you mean 'what'?)"));
    EXPECT_THAT(error.what(), HasSubstr("'what' is missing; it must be a list of strings"));
  }
}

TEST(Selections, gemms_times_tensors_with_defaults_filled_in) {
  EXPECT_THAT(list_selections("    Modify: {enabled: True, gemms: [fprop, wgrad], tensors: "
                              "[activation, weight], how: round}\n"),
              ElementsAre(R"(fprop activation {"how": "round", "bits": 8})",
                          R"(fprop weight {"how": "round", "bits": 8})",
                          R"(wgrad activation {"how": "round", "bits": 8})",
                          R"(wgrad weight {"how": "round", "bits": 8})"));
}

TEST(Selections, keys_of_an_item_override_keys_next_to_the_struct) {
  EXPECT_THAT(list_selections(R"(
    Modify:
      enabled: True
      how: round
      bits: 4
      gemms_struct:
        - gemm: fprop
          tensors: [activation]
          bits: 6
        - gemm: dgrad
          how: truncate
          tensors_struct:
            - tensor: weight
            - {tensor: gradient, how: round, bits: 7}
)"),
              ElementsAre(R"(fprop activation {"how": "round", "bits": 6})",
                          R"(dgrad weight {"how": "truncate", "bits": 4})",
                          R"(dgrad gradient {"how": "round", "bits": 7})"));
}

TEST(Selections, tensors_next_to_gemms_struct_are_the_default_for_items) {
  EXPECT_THAT(list_selections(R"(
    Modify:
      enabled: True
      how: round
      tensors_struct: [{tensor: weight, bits: 2}]
      gemms_struct: [{gemm: fprop}, {gemm: wgrad, tensors: gradient}]
)"),
              ElementsAre(R"(fprop weight {"how": "round", "bits": 2})",
                          R"(wgrad gradient {"how": "round", "bits": 8})"));
}

TEST(Selections, gemms_serve_every_item_of_a_tensors_struct) {
  EXPECT_THAT(list_selections("    Modify: {enabled: True, gemms: [fprop, dgrad], how: round, "
                              "tensors_struct: [{tensor: weight, bits: 1}]}\n"),
              ElementsAre(R"(fprop weight {"how": "round", "bits": 1})",
                          R"(dgrad weight {"how": "round", "bits": 1})"));
}

TEST(Selections, string_is_accepted_as_one_element_list) {
  EXPECT_THAT(list_selections("    Watch: {enabled: True, tensors: weight, what: a}\n"),
              ElementsAre(R"(- weight {"what": ["a"]})"));
}

TEST(Selections, a_name_twice_in_a_plain_list_counts_once) {
  EXPECT_THAT(list_selections("    Gemms: {enabled: True, gemms: [fprop, fprop]}\n"),
              ElementsAre("fprop - {}"));
}

TEST(Selections, an_empty_list_of_gemms_or_tensors_chooses_none) {
  for (const char* feature : {
           "    Gemms: {enabled: True, gemms: []}\n",
           "    Gemms: {enabled: True, gemms_struct: []}\n",
           "    Watch: {enabled: True, what: a, tensors: []}\n",
           "    Watch: {enabled: True, tensors: []}\n",
           "    Watch: {enabled: True, what: a, tensors_struct: []}\n",
           "    Modify: {enabled: True, gemms: []}\n",
           "    Modify: {enabled: True, gemms: [], tensors: weight, how: round}\n",
           "    Modify: {enabled: True, how: round, gemms_struct: [{gemm: fprop, tensors: []}]}\n",
       }) {
    EXPECT_THAT(list_selections(feature), ::testing::IsEmpty()) << feature;
  }
}

TEST(Selections, a_feature_that_chooses_nothing_has_one_selection) {
  EXPECT_THAT(list_selections("    Layer: {enabled: True}\n"), ElementsAre("- - {}"));
}

TEST(Selections, each_item_may_have_its_own_schedule) {
  const Config config = load(with_features(R"(
    Watch:
      enabled: True
      what: a
      freq: 10
      end_step: 40
      tensors_struct: [{tensor: weight, freq: 20}, {tensor: activation, start_step: 35}]
)"));
  const FeatureEntry& entry = *config.entries_for("x").at(0);
  EXPECT_EQ(entry.find(std::nullopt, "weight")->schedule, Schedule(20, {{0, 40}}));
  EXPECT_EQ(entry.find(std::nullopt, "activation")->schedule, Schedule(10, {{35, 40}}));
  EXPECT_EQ(entry.find(std::nullopt, "gradient"), nullptr);
  EXPECT_EQ(entry.find(Gemm::fprop, "weight"), nullptr);
  EXPECT_TRUE(entry.due(20));
  EXPECT_FALSE(entry.due(30));
  EXPECT_EQ(entry.next_due_after(20), 40);
  EXPECT_EQ(entry.next_due_after(40), std::nullopt);
}

TEST(MatchedConfig, equals_the_configuration_passed_by_the_peer) {
  const Config config = load(with_features(R"(
    Own:
      enabled: True
      a: 1
      gemms_struct:
        - {gemm: fprop, tensors: [weight], a: 2}
        - {gemm: dgrad, tensors_struct: [{tensor: gradient, b: 3}]}
)"));
  const Value& own = config.entries_for("x").at(0)->config;
  EXPECT_EQ(to_json(*matched_config(own, Gemm::fprop, "weight")),
            R"({"a": 2, "gemm": "fprop", "tensor": "weight"})");
  EXPECT_EQ(to_json(*matched_config(own, Gemm::dgrad, "gradient")),
            R"({"a": 1, "gemm": "dgrad", "tensor": "gradient", "b": 3})");
  EXPECT_EQ(to_json(*matched_config(own, Gemm::fprop, std::nullopt)),
            R"({"a": 2, "gemm": "fprop", "tensors": ["weight"]})");
  EXPECT_EQ(matched_config(own, Gemm::wgrad, "weight"), std::nullopt);
  EXPECT_EQ(matched_config(own, Gemm::fprop, "gradient"), std::nullopt);
  EXPECT_THROW(matched_config(own, std::nullopt, "weight"), ConfigError);
}

constexpr std::string_view kTwoSections = R"(
first:
  enabled: True
  layers: {{layer_types: fc1}}
  {}
second:
  enabled: True
  layers: {{layer_types: [fc1, fc2]}}
  {}
)";

TEST(Overlap, is_an_error_that_names_both_sections) {
  const std::string te = "transformer_engine: {Layer: {enabled: True}}";
  const Config config = load(fmt::format(kTwoSections, te, te));
  EXPECT_THAT(names(config.entries_for("a.fc2")), ElementsAre("second/transformer_engine.Layer"));
  try {
    config.entries_for("a.fc1");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "f.yaml:6:1: the sections 'first' (f.yaml:2:1) and 'second' both select the "
                 "layer 'a.fc1'; a layer can be in only one section: merge the two, or narrow "
                 "'layers' in one");
  }
}

TEST(Overlap, is_allowed_for_sections_with_only_telens_features) {
  const std::string te = "transformer_engine: {Layer: {enabled: True}}";
  const std::string ours = "telens: {Trigger: {enabled: True}}";
  EXPECT_THAT(names(load(fmt::format(kTwoSections, te, ours)).entries_for("fc1")),
              ElementsAre("first/transformer_engine.Layer", "second/telens.Trigger"));
  EXPECT_THAT(load(fmt::format(kTwoSections, ours, ours)).entries_for("fc1").size(), 2U);
  EXPECT_THROW(load(fmt::format(kTwoSections, ours + "\n  " + te, te)).entries_for("fc1"),
               ConfigError);
}

TEST(Modifiers, two_on_the_same_tensor_and_gemm_are_an_error_at_load) {
  EXPECT_EQ(get_error(with_features(
                R"(    Modify: {enabled: True, gemms: fprop, tensors: weight, how: round}
    Scale: {enabled: True, gemms: [fprop, dgrad], tensors: weight}
)")),
            "f.yaml:6:5: section 's': Scale and Modify (f.yaml:5:5) modify the same tensor in the "
            "same GEMM; only one may");
}

TEST(Modifiers, may_share_a_tensor_in_different_gemms) {
  EXPECT_EQ(get_error(with_features(
                R"(    Modify: {enabled: True, gemms: fprop, tensors: weight, how: round}
    Scale: {enabled: True, gemms: dgrad, tensors: weight}
)")),
            "");
}

TEST(Modifiers, in_overlapping_sections_are_found_with_the_layer) {
  const Config config = load(fmt::format(
      kTwoSections, "transformer_engine: {Scale: {enabled: on, gemms: fprop, tensors: weight}}",
      "telens: {Noise: {enabled: on, gemms: fprop, tensors: weight}}"));
  try {
    config.entries_for("fc1");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("layer 'fc1': Noise and Scale (f.yaml:5:"));
  }
}

TEST(ConfigFile, that_is_missing_is_an_error_that_names_it) {
  try {
    load_config_file("no/such.yaml", shared_descriptions());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "the config file 'no/such.yaml' cannot be read: No such file or directory; check "
                 "the path (\"\" means no config) and its rights");
  }
  EXPECT_THROW(load_config_file(::testing::TempDir(), shared_descriptions()), ConfigError);
}

TEST(ConfigFile, that_is_empty_selects_nothing) {
  const std::string path = ::testing::TempDir() + "telens_empty_config.yaml";
  std::ofstream(path).close();
  const Config config = load_config_file(path, shared_descriptions());
  EXPECT_THAT(config.sections(), IsEmpty());
  EXPECT_THAT(config.warnings(), ElementsAre(HasSubstr("it is empty and watches nothing")));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace telens::config
