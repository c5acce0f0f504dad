#include "hooks/config/config.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <fstream>

#include "core/base/error.h"
#include "tests/hooks/config/test_features.h"

namespace telens::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Descriptions& descriptions() {
  static const Descriptions kDescriptions = test_descriptions();
  return kDescriptions;
}

Config load(std::string_view yaml) { return load_config_text(yaml, "f.yaml", descriptions()); }

std::string error_of(std::string_view yaml) {
  try {
    load(yaml);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// A section "s" for all layers with these lines (indented by two) in transformer_engine.
std::string with_features(std::string_view features) {
  return fmt::format(
      "s:\n  enabled: True\n  layers: {{layer_types: all}}\n  transformer_engine:\n{}", features);
}

// "gemm tensor parameters" of every selection of the only feature of a layer.
std::vector<std::string> selections_of(std::string_view features) {
  const Config config = load(with_features(features));
  std::vector<std::string> texts;
  for (const Selection& selection : config.entries_for("x").at(0)->selections) {
    texts.push_back(fmt::format("{} {} {}", selection.gemm ? name_of(*selection.gemm) : "-",
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
    load_config_value(Value(Value::Map{{"s", section}}), descriptions());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("config: section 's', feature 'Watch': unknown key "
                                        "'whatt' (did you mean 'what'?)"));
    EXPECT_THAT(error.what(), HasSubstr("'what' is missing; it must be a list of strings"));
  }
}

TEST(Selections, gemms_times_tensors_with_defaults_filled_in) {
  EXPECT_THAT(selections_of("    Modify: {enabled: True, gemms: [fprop, wgrad], tensors: "
                            "[activation, weight], how: round}\n"),
              ElementsAre(R"(fprop activation {"how": "round", "bits": 8})",
                          R"(fprop weight {"how": "round", "bits": 8})",
                          R"(wgrad activation {"how": "round", "bits": 8})",
                          R"(wgrad weight {"how": "round", "bits": 8})"));
}

TEST(Selections, an_items_own_keys_win_over_those_beside_the_struct) {
  EXPECT_THAT(selections_of(R"(
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

TEST(Selections, tensors_beside_gemms_struct_serve_the_items_without_their_own) {
  EXPECT_THAT(selections_of(R"(
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
  EXPECT_THAT(selections_of("    Modify: {enabled: True, gemms: [fprop, dgrad], how: round, "
                            "tensors_struct: [{tensor: weight, bits: 1}]}\n"),
              ElementsAre(R"(fprop weight {"how": "round", "bits": 1})",
                          R"(dgrad weight {"how": "round", "bits": 1})"));
}

TEST(Selections, a_string_stands_for_a_list_of_one) {
  EXPECT_THAT(selections_of("    Watch: {enabled: True, tensors: weight, what: a}\n"),
              ElementsAre(R"(- weight {"what": ["a"]})"));
}

TEST(Selections, a_name_twice_in_a_plain_list_counts_once) {
  EXPECT_THAT(selections_of("    Gemms: {enabled: True, gemms: [fprop, fprop]}\n"),
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
    EXPECT_THAT(selections_of(feature), ::testing::IsEmpty()) << feature;
  }
}

TEST(Selections, a_feature_that_chooses_nothing_has_one_selection) {
  EXPECT_THAT(selections_of("    Layer: {enabled: True}\n"), ElementsAre("- - {}"));
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

TEST(MatchedConfig, is_what_the_peer_hands_to_a_feature_class) {
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

TEST(Overlap, of_two_sections_is_an_error_that_names_both_when_the_layer_is_resolved) {
  const std::string te = "transformer_engine: {Layer: {enabled: True}}";
  const Config config = load(fmt::format(kTwoSections, te, te));
  EXPECT_THAT(names(config.entries_for("a.fc2")), ElementsAre("second/transformer_engine.Layer"));
  try {
    config.entries_for("a.fc1");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "f.yaml:6:1: the sections 'first' (f.yaml:2:1) and 'second' both select the layer "
                 "'a.fc1'; a layer takes one section: join the two, or narrow the 'layers' of one");
  }
}

TEST(Overlap, is_free_for_a_section_of_the_telens_namespace_alone) {
  const std::string te = "transformer_engine: {Layer: {enabled: True}}";
  const std::string ours = "telens: {Trigger: {enabled: True}}";
  EXPECT_THAT(names(load(fmt::format(kTwoSections, te, ours)).entries_for("fc1")),
              ElementsAre("first/transformer_engine.Layer", "second/telens.Trigger"));
  EXPECT_THAT(load(fmt::format(kTwoSections, ours, ours)).entries_for("fc1").size(), 2U);
  EXPECT_THROW(load(fmt::format(kTwoSections, ours + "\n  " + te, te)).entries_for("fc1"),
               ConfigError);
}

TEST(Modifiers, two_on_one_tensor_of_one_gemm_are_an_error_at_load) {
  EXPECT_EQ(error_of(with_features(
                R"(    Modify: {enabled: True, gemms: fprop, tensors: weight, how: round}
    Scale: {enabled: True, gemms: [fprop, dgrad], tensors: weight}
)")),
            "f.yaml:6:5: section 's': Scale and Modify (f.yaml:5:5) modify the same tensor in the "
            "same GEMM; only one may");
}

TEST(Modifiers, may_share_a_tensor_in_different_gemms) {
  EXPECT_EQ(error_of(with_features(
                R"(    Modify: {enabled: True, gemms: fprop, tensors: weight, how: round}
    Scale: {enabled: True, gemms: dgrad, tensors: weight}
)")),
            "");
}

TEST(Modifiers, of_overlapping_sections_are_found_when_the_layer_is_resolved) {
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

struct Mistake {
  const char* features;  // lines in the namespace transformer_engine
  const char* error;
};

constexpr Mistake kMistakes[] = {
    {"    Wach: {enabled: True}",
     "f.yaml:5:5: section 's': unknown feature of the namespace 'transformer_engine' "
     "'Wach' (did you mean 'Watch'?); expected one of 'Modify', 'Alter', 'Scale', "
     "'Watch', 'Gemms', 'Layer', 'Own'"},
    {"    Free: {enabled: True}",
     "f.yaml:5:5: section 's': the namespace 'transformer_engine' has no feature "
     "'Free'; it belongs under 'base:'"},
    {"    Layer: {}",
     "f.yaml:5:5: section 's', feature 'Layer': 'enabled' is missing; write 'enabled: "
     "True' or 'enabled: False'"},
    {"    Layer: True",
     "f.yaml:5:5: section 's', feature 'Layer': expected a mapping with 'enabled', not "
     "the boolean true"},
    {"    Layer: {enabled: 'True'}",
     "f.yaml:5:22: section 's', feature 'Layer': 'enabled' must be true or false, not "
     "the string 'True'"},
    {"    Layer: {enabled: True, freq: 2}",
     "f.yaml:5:28: section 's', feature 'Layer': unknown key 'freq'; Layer takes "
     "'enabled'"},
    {"    Gemms: {enabled: True, gems: fprop}",
     "f.yaml:5:12: section 's', feature 'Gemms': 'gemms' is missing: give 'gemms: "
     "[fprop]' or 'gemms_struct: [{gemm: fprop}]'\n"
     "f.yaml:5:28: section 's', feature 'Gemms': unknown key 'gems' (did you mean "
     "'gemms'?); Gemms takes 'enabled', 'gemms', 'gemms_struct', 'freq', 'start_step', "
     "'end_step', 'start_end_list'"},
    {"    Gemms: {enabled: True, gemms: [fprob]}",
     "f.yaml:5:36: section 's', feature 'Gemms': unknown gemm 'fprob' (did you mean "
     "'fprop'?); Gemms takes 'fprop', 'dgrad', 'wgrad'"},
    {"    Gemms: {enabled: True, gemms: [1]}",
     "f.yaml:5:36: section 's', feature 'Gemms': 'gemms' must be a list of strings, not "
     "the number 1"},
    {"    Watch: {enabled: True, what: [], tensors: []}",
     "f.yaml:5:34: section 's', feature 'Watch': 'what' is empty; name at least one, or write "
     "'enabled: False' to switch off what it belongs to"},
    {"    Gemms: {enabled: True, gemms_struct: {gemm: fprop}}",
     "f.yaml:5:42: section 's', feature 'Gemms': 'gemms_struct' must be a list of "
     "mappings, each with 'gemm', not the mapping {\"gemm\": \"fprop\"}"},
    {"    Gemms: {enabled: True, gemms_struct: [fprop]}",
     "f.yaml:5:43: section 's', feature 'Gemms': an item of 'gemms_struct' must be a "
     "mapping with 'gemm', not the string 'fprop'"},
    {"    Gemms: {enabled: True, gemms_struct: [{gemm: fprop}, {gemm: fprop}]}",
     "f.yaml:5:65: section 's', feature 'Gemms': 'fprop' stands twice in "
     "'gemms_struct'; keep one item"},
    {"    Gemms: {enabled: True, gemms_struct: [{gemm: fprop, enabled: True}]}",
     "f.yaml:5:57: section 's', feature 'Gemms': 'enabled' may not stand in an item of "
     "a struct; it belongs to the feature"},
    {"    Gemms: {enabled: True, gemms_struct: [{gemm: fprop, frequency: 2}]}",
     "f.yaml:5:57: section 's', feature 'Gemms': unknown key 'frequency' (did you mean "
     "'freq'?); an item of a struct takes 'gemm', 'freq', 'start_step', 'end_step', "
     "'start_end_list'"},
    {"    Gemms: {enabled: True, gemms: fprop, freq: 0}",
     "f.yaml:5:48: section 's', feature 'Gemms': 'freq' must be an integer of at least "
     "1, not the number 0"},
    {"    Watch: {enabled: True, what: a, tensors: [weihgt]}",
     "f.yaml:5:47: section 's', feature 'Watch': unknown tensor 'weihgt' (did you mean "
     "'weight'?); Watch takes 'activation', 'weight', 'gradient'"},
    {"    Watch: {enabled: True, what: a, tensors: [output]}",
     "f.yaml:5:47: section 's', feature 'Watch': the feature does not serve the tensor "
     "'output'; Watch takes 'activation', 'weight', 'gradient'"},
    {"    Watch: {enabled: True, what: [1], tensors: weight}",
     "f.yaml:5:34: section 's', feature 'Watch': 'what' must be a list of strings, not "
     "the list [1]"},
    {"    Watch: {enabled: True, tensors_struct: [{tensor: weight, what: a}, {tensor: "
     "activation}]}",
     "f.yaml:5:72: section 's', feature 'Watch': 'what' is missing; it must be a list "
     "of strings"},
    {"    Modify: {enabled: True, gemms: fprop, tensors: weight, how: up}",
     "f.yaml:5:65: section 's', feature 'Modify': 'how' cannot be 'up'; expected one of "
     "'round', 'truncate'"},
    {"    Modify: {enabled: True, gemms: fprop, tensors: weight, how: roudn}",
     "f.yaml:5:65: section 's', feature 'Modify': 'how' cannot be 'roudn' (did you mean "
     "'round'?); expected one of 'round', 'truncate'"},
    {"    Modify: {enabled: True, gemms: fprop, tensors: weight, how: round, bits: 1.5}",
     "f.yaml:5:78: section 's', feature 'Modify': 'bits' must be an integer, not the "
     "number 1.5"},
    {"    Modify: {enabled: True, gemms_struct: [{gemm: fprop}], how: round}",
     "f.yaml:5:44: section 's', feature 'Modify': 'tensors' is missing: give 'tensors: "
     "[activation]' or 'tensors_struct: [{tensor: activation}]'"},
    {"    Modify: &m {enabled: True, gemms: fprop, tensors: weight, how: round}\n"
     "    Alter: *m",
     "f.yaml:6:5: section 's': Alter and Modify (f.yaml:5:5) are the same feature; keep "
     "one"}};

TEST(FeatureMistakes, are_named_with_their_place) {
  for (const Mistake& mistake : kMistakes) {
    EXPECT_EQ(error_of(with_features(mistake.features)), mistake.error) << mistake.features;
  }
}

TEST(ConfigMistakes, of_a_section_are_named_with_their_place) {
  EXPECT_EQ(error_of("- a\n"),
            "f.yaml:1:1: a config must be a mapping of sections, not the list [\"a\"]");
  EXPECT_EQ(error_of("s: 1\n"),
            "f.yaml:1:1: section 's': expected a mapping with 'enabled', not the number 1");
  EXPECT_EQ(error_of("s: {layers: {layer_types: all}}\n"),
            "f.yaml:1:1: section 's': 'enabled' is missing; write 'enabled: True' or 'enabled: "
            "False'");
  for (const char* key : {"exact_layer_names", "layer_types", "layer_numbers"}) {
    EXPECT_EQ(error_of(fmt::format("s: {{enabled: True, layers: {{{}: []}}}}\n", key)),
              fmt::format("f.yaml:1:{}: section 's': '{}' is empty; name at least one, or write "
                          "'enabled: False' to switch off what it belongs to",
                          31 + std::string_view(key).size(), key));
  }
  EXPECT_EQ(error_of("s: {enabled: True}\n"),
            "f.yaml:1:1: section 's': 'layers' is missing; say which layers, for example 'layers: "
            "{layer_types: [all]}'");
  EXPECT_EQ(error_of("s: {enabled: True, layers: {layer_types: all}, transformer_engine: [Own]}"),
            "f.yaml:1:68: section 's': the namespace 'transformer_engine' must be a mapping of "
            "features, not the list [\"Own\"]");
  EXPECT_EQ(error_of("s: {enabled: True, layers: {layer_types: all}, transformer_engin: {}}"),
            "f.yaml:1:48: section 's': unknown feature or namespace 'transformer_engin' (did you "
            "mean 'transformer_engine'?); expected one of 'Free', 'base', 'telens', "
            "'transformer_engine', 'layers', 'enabled', 'started_by', 'kept_by', 'budget', 'mode'");
  EXPECT_EQ(error_of("s: {enabled: True, layers: {layer_types: all}, Watch: {}}"),
            "f.yaml:1:48: section 's': the namespace 'base' has no feature 'Watch'; it belongs "
            "under 'transformer_engine:'");
}

TEST(ConfigMistakes, of_a_whole_file_come_together_in_the_order_of_the_text) {
  const std::string error = error_of(R"(a:
  enabled: True
  layers: {layer_type: fc1}
  transformer_engine:
    Watch: {enabled: True, what: a, tensors: [x], freq: 0}
    Gemms: {enabled: True, gemms: [y], gemms: [z]}
b:
  enabled: maybe
)");
  std::vector<std::string> places;
  std::istringstream lines(error);
  for (std::string line; std::getline(lines, line);) {
    places.push_back(line.substr(0, line.find(": ")));
  }
  EXPECT_THAT(places, ElementsAre("f.yaml:3:12", "f.yaml:5:47", "f.yaml:5:57", "f.yaml:6:36",
                                  "f.yaml:6:40", "f.yaml:7:1", "f.yaml:8:12"))
      << error;
}

TEST(ConfigMistakes, of_what_is_neither_on_nor_off_are_told_with_it) {
  for (const char* enabled : {"enabled: Ture, ", "enabled: 1, ", ""}) {
    const std::string error = error_of(fmt::format(
        "s: {{{0}layers: {{layer_type: fc1}}, transformer_engine: {{Watch: {{{0}what: [a], "
        "tensors: [x]}}}}}}\n",
        enabled));
    EXPECT_THAT(error, AllOf(HasSubstr("section 's': 'enabled'"), HasSubstr("'layer_type'"),
                             HasSubstr("feature 'Watch': 'enabled'"), HasSubstr("'x'")))
        << error;
  }
}

TEST(ConfigMistakes, a_default_that_several_items_share_is_wrong_once) {
  EXPECT_EQ(error_of(with_features("    Watch: {enabled: True, what: 1, tensors: [weight, "
                                   "activation]}\n")),
            "f.yaml:5:34: section 's', feature 'Watch': 'what' must be a list of strings, not the "
            "number 1");
}

TEST(ConfigFile, that_is_missing_is_an_error_that_names_it) {
  try {
    load_config_file("no/such.yaml", descriptions());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "the config file 'no/such.yaml' cannot be read: No such file or directory; check "
                 "the path (\"\" means no config) and its rights");
  }
  EXPECT_THROW(load_config_file(::testing::TempDir(), descriptions()), ConfigError);
}

TEST(ConfigFile, that_is_empty_selects_nothing) {
  const std::string path = ::testing::TempDir() + "telens_empty_config.yaml";
  std::ofstream(path).close();
  EXPECT_THAT(load_config_file(path, descriptions()).sections(), IsEmpty());
  std::remove(path.c_str());
}

TEST(Descriptions, a_second_feature_of_a_name_is_an_error_that_names_both_owners) {
  Descriptions own = test_descriptions();
  try {
    own.add({.feature_namespace = "transformer_engine", .name = "Alter", .owner = "mine.py"});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "the feature transformer_engine.Alter of mine.py cannot be registered: telens has "
                 "registered that name already; rename one of the two");
  }
  own.add({.feature_namespace = "mine", .name = "Alter"});
  EXPECT_EQ(own.find_all("Alter").size(), 2U);
  EXPECT_EQ(own.find_all("mine.Alter").size(), 1U);
  EXPECT_TRUE(own.has_namespace("mine"));
}

TEST(Options, are_made_once_and_shared_by_selections_with_equal_parameters) {
  struct Own {
    std::int64_t bits;
  };
  int made = 0;
  Descriptions descriptions;
  descriptions.add({.feature_namespace = "telens",
                    .name = "Round",
                    .selects = Selects::tensors,
                    .tensors = all_tensor_names(),
                    .parameters = {{.name = "bits", .type = ParameterType::integer}},
                    .parse = [&made](const Value& parameters, ErrorList&) {
                      ++made;
                      return make_options(Own{parameters.find("bits")->as_integer()});
                    }});
  const Config config = load_config_text(
      "s: {enabled: on, layers: {layer_types: all}, telens: {Round: {enabled: on, bits: 3,"
      "tensors_struct: [{tensor: weight}, {tensor: output}, {tensor: dgrad, bits: 4}]}}}",
      "f", descriptions);
  const std::vector<Selection>& selections = config.entries_for("x").at(0)->selections;
  EXPECT_EQ(made, 2);
  EXPECT_EQ(selections.at(0).options, selections.at(1).options);
  EXPECT_EQ(selections.at(1).options_as<Own>().bits, 3);
  EXPECT_EQ(selections.at(2).options_as<Own>().bits, 4);
}

TEST(Options, that_do_not_fit_together_are_mistakes) {
  Descriptions descriptions;
  descriptions.add({.feature_namespace = "telens",
                    .name = "Round",
                    .parse = [](const Value& parameters, ErrorList& errors) -> OptionsPtr {
                      errors.add(parameters.location(), "they do not fit");
                      return nullptr;
                    }});
  const auto load = [&] {
    load_config_text("s: {enabled: on, layers: {layer_types: all}, telens: {Round: {enabled: on}}}",
                     "f", descriptions);
  };
  EXPECT_THROW(load(), ConfigError);
}

TEST(Explain, tells_everything_that_a_description_holds) {
  const FeatureDescription description{.feature_namespace = "mine",
                                       .name = "Round",
                                       .aliases = {"Rounding"},
                                       .summary = "rounds",
                                       .doc = "More words.",
                                       .example = "Round:\n  enabled: True\n",
                                       .selects = Selects::gemms_and_tensors,
                                       .tensors = {"weight"},
                                       .parameters = {{.name = "bits",
                                                       .type = ParameterType::integer,
                                                       .default_value = 8,
                                                       .doc = "of the mantissa"},
                                                      {.name = "how",
                                                       .type = ParameterType::string,
                                                       .required = true,
                                                       .allowed_values = {"up", "down"}}}};
  EXPECT_EQ(explain(description), R"(mine.Round (also Rounding): rounds

More words.

Options:
  enabled: true or false, required
  gemms: list of 'fprop', 'dgrad', 'wgrad'; or gemms_struct: [{gemm: fprop, ...}]
  tensors: list of 'weight'; or tensors_struct: [{tensor: ..., ...}]
  freq: every which iteration, default 1
  start_step, end_step: first and last iteration, default 0 and none (-1)
  start_end_list: [[first, last], ...] in place of the two
  bits: an integer, default 8
      of the mantissa
  how: a string, required
      one of 'up', 'down'

Example:
Round:
  enabled: True
)");
}

}  // namespace
}  // namespace telens::config
