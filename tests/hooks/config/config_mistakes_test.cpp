// Loading a configuration reports each mistake with its place.
#include <gmock/gmock.h>

#include "tests/hooks/config/test_features.h"

namespace telens::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Mistake {
  const char* features;  // lines in the namespace transformer_engine
  const char* error;
};

constexpr Mistake kMistakes[] = {
    {"    Wach: {enabled: True}",
     "f.yaml:5:5: section 's': unknown feature of the namespace 'transformer_engine' "
     "'Wach' (did you mean 'Watch'?); expected one of 'Modify', 'Alter', 'Scale', "
     "'Watch', 'Gemms', 'Layer', 'Own'"},
    {"    MyOutliers: {enabled: True}",
     "f.yaml:5:5: section 's': unknown feature of the namespace 'transformer_engine' "
     "'MyOutliers'; expected one of 'Modify', 'Alter', 'Scale', 'Watch', 'Gemms', 'Layer', "
     "'Own'; a plugin's feature requires the plugin: pass feature_dirs to initialize(), or its "
     "name to the command with --plugin-feature"},
    {"    Free: {enabled: True}",
     "f.yaml:5:5: section 's': the namespace 'transformer_engine' does not have a "
     "feature 'Free'; move it to 'base:'"},
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
     "f.yaml:5:34: section 's', feature 'Watch': 'what' is empty; list at least one, or write "
     "'enabled: False' to disable the feature or section"},
    {"    Gemms: {enabled: True, gemms_struct: {gemm: fprop}}",
     "f.yaml:5:42: section 's', feature 'Gemms': 'gemms_struct' must be a list of "
     "mappings, each with 'gemm', not the mapping {\"gemm\": \"fprop\"}"},
    {"    Gemms: {enabled: True, gemms_struct: [fprop]}",
     "f.yaml:5:43: section 's', feature 'Gemms': an item of 'gemms_struct' must be a "
     "mapping with 'gemm', not the string 'fprop'"},
    {"    Gemms: {enabled: True, gemms_struct: [{gemm: fprop}, {gemm: fprop}]}",
     "f.yaml:5:65: section 's', feature 'Gemms': 'fprop' occurs twice in "
     "'gemms_struct'; keep one item"},
    {"    Gemms: {enabled: True, gemms_struct: [{gemm: fprop, enabled: True}]}",
     "f.yaml:5:57: section 's', feature 'Gemms': 'enabled' is not allowed in an item of a "
     "struct; move it to the feature"},
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
    EXPECT_EQ(get_error(with_features(mistake.features)), mistake.error) << mistake.features;
  }
}

TEST(ConfigMistakes, in_a_section_are_reported_with_position) {
  EXPECT_EQ(get_error("- a\n"),
            "f.yaml:1:1: a config must be a mapping of sections, not the list [\"a\"]");
  EXPECT_EQ(get_error("s: 1\n"),
            "f.yaml:1:1: section 's': expected a mapping with 'enabled', not the number 1");
  EXPECT_EQ(get_error("s: {layers: {layer_types: all}}\n"),
            "f.yaml:1:1: section 's': 'enabled' is missing; write 'enabled: True' or 'enabled: "
            "False'");
  for (const char* key : {"exact_layer_names", "layer_types", "layer_numbers"}) {
    EXPECT_EQ(get_error(fmt::format("s: {{enabled: True, layers: {{{}: []}}}}\n", key)),
              fmt::format("f.yaml:1:{}: section 's': '{}' is empty; list at least one, or write "
                          "'enabled: False' to disable the feature or section",
                          31 + std::string_view(key).size(), key));
  }
  EXPECT_EQ(get_error("s: {enabled: True}\n"),
            "f.yaml:1:1: section 's': 'layers' is missing; say which layers, for example 'layers: "
            "{layer_types: [all]}'");
  EXPECT_EQ(get_error("s: {enabled: True, layers: {layer_types: all}, transformer_engine: [Own]}"),
            "f.yaml:1:68: section 's': the namespace 'transformer_engine' must be a mapping of "
            "features, not the list [\"Own\"]");
  EXPECT_EQ(get_error("s: {enabled: True, layers: {layer_types: all}, transformer_engin: {}}"),
            "f.yaml:1:48: section 's': unknown feature or namespace 'transformer_engin' (did you "
            "mean 'transformer_engine'?); expected one of 'Free', 'base', 'telens', "
            "'transformer_engine', 'layers', 'enabled', 'started_by', 'kept_by', 'budget', 'mode'");
  EXPECT_EQ(get_error("s: {enabled: True, layers: {layer_types: all}, Watch: {}}"),
            "f.yaml:1:48: section 's': the namespace 'base' does not have a feature 'Watch'; move "
            "it to 'transformer_engine:'");
}

TEST(ConfigMistakes, in_indentation_name_the_line_to_indent) {
  const std::string section = "s: {enabled: True, layers: {layer_types: all}";
  const std::string in_no_section =
      "' is not inside a section; write a section name first, for example 'watch:', and indent '";
  for (const std::string word : {"Watch", "transformer_engine", "layers", "enabled"}) {
    EXPECT_EQ(get_error(word + ": {what: [a]}\n"),
              "f.yaml:1:1: '" + word + in_no_section + word + "' and its content below it");
  }
  EXPECT_EQ(get_error(section + ", transformer_engine: {Watch: , what: [a]}}"),
            "f.yaml:1:69: section 's', feature 'Watch': expected a mapping with 'enabled', not "
            "nothing (null)\nf.yaml:1:78: section 's': 'what' is at the same level as the empty "
            "'Watch'; indent it further");
  EXPECT_THAT(
      get_error(section + ", transformer_engine: {Watch: , Lyer: {enabled: True}}}"),
      HasSubstr("unknown feature of the namespace 'transformer_engine' 'Lyer' (did you mean "
                "'Layer'?)"));
  EXPECT_THAT(
      get_error(section + ", transformer_engine: {Watch: , wathc: {enabled: True}}}"),
      HasSubstr("unknown feature of the namespace 'transformer_engine' 'wathc' (did you mean "
                "'Watch'?)"));
  EXPECT_EQ(get_error(section + ", transformer_engine: {budget: 3%}}"),
            "f.yaml:1:69: section 's': 'budget' is a key of the section, not a feature of "
            "'transformer_engine'; indent it less, like 'transformer_engine:'");
  EXPECT_EQ(get_error(section + ", layer_numbers: 1}"),
            "f.yaml:1:48: section 's': 'layer_numbers' belongs under 'layers:'; indent it further");
  EXPECT_THAT(get_error("s: {enabled: True, layers: {layer_types: all, Watch: {enabled: True}}}"),
              HasSubstr("unknown key 'Watch' in 'layers'; it takes "));
  EXPECT_THAT(get_error("s: {enabled: True, layers: {layer_types: all, Watch: {enabled: True}}}"),
              HasSubstr("; indent a feature or namespace less, as 'layers:'"));
  EXPECT_THAT(get_error(section + ", transformer_engine: {Layer: {enabled: True, Watch: {}}}}"),
              HasSubstr("Layer takes 'enabled'; indent another feature less, as this one"));
}

TEST(ConfigMistakes, leave_a_section_the_name_of_a_feature) {
  EXPECT_EQ(get_error("Watch: {enabled: True, layers: {layer_types: all}}\n"), "");
  EXPECT_EQ(get_error("layers: {enabled: False}\n"), "");
}

TEST(ConfigMistakes, in_a_file_are_reported_together_in_text_order) {
  const std::string error = get_error(R"(a:
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

TEST(ConfigMistakes, with_non_boolean_switches_show_the_value) {
  for (const char* enabled : {"enabled: Ture, ", "enabled: 1, ", ""}) {
    const std::string error = get_error(fmt::format(
        "s: {{{0}layers: {{layer_type: fc1}}, transformer_engine: {{Watch: {{{0}what: [a], "
        "tensors: [x]}}}}}}\n",
        enabled));
    EXPECT_THAT(error, AllOf(HasSubstr("section 's': 'enabled'"), HasSubstr("'layer_type'"),
                             HasSubstr("feature 'Watch': 'enabled'"), HasSubstr("'x'")))
        << error;
  }
}

TEST(ConfigMistakes, a_default_that_several_items_share_is_wrong_once) {
  EXPECT_EQ(get_error(with_features("    Watch: {enabled: True, what: 1, tensors: [weight, "
                                    "activation]}\n")),
            "f.yaml:5:34: section 's', feature 'Watch': 'what' must be a list of strings, not the "
            "number 1");
}

}  // namespace
}  // namespace telens::config
