#include "hooks/config/layer_selector.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "core/base/error.h"
#include "hooks/config/yaml_reader.h"

namespace telens::config {
namespace {

LayerSelector parse(std::string_view yaml) {
  ErrorList errors;
  LayerSelector selector = LayerSelector::parse(read_yaml(yaml, "f.yaml", errors), errors);
  EXPECT_EQ(errors.text(), "");
  return selector;
}

std::string get_error(std::string_view yaml) {
  ErrorList errors;
  LayerSelector::parse(read_yaml(yaml, "f.yaml", errors), errors);
  return errors.text();
}

TEST(LayerSelector, empty_name_or_type_is_an_error_and_empty_pattern_warns) {
  using ::testing::HasSubstr;
  for (const std::string_view empty : {"''", "['']", "[fc1, \"\"]"}) {
    EXPECT_THAT(get_error(fmt::format("{{layer_types: {}}}", empty)),
                HasSubstr("'layer_types' holds an empty string, which names no layer; write a part "
                          "of layers' names such as fc1, or 'all' for all layers"));
    EXPECT_THAT(get_error(fmt::format("{{exact_layer_names: {}}}", empty)),
                HasSubstr("'exact_layer_names' holds an empty string"));
  }
  ErrorList errors;
  LayerSelector::parse(read_yaml("{layer_name_regex_pattern: ''}", "f.yaml", errors), errors);
  EXPECT_EQ(errors.text(), "");
  ASSERT_EQ(errors.warning_lines().size(), 1U);
  EXPECT_THAT(errors.warning_lines()[0], HasSubstr("f.yaml:1:28: 'layer_name_regex_pattern' is "
                                                   "empty, which is found in every layer's name"));
}

TEST(LayerSelector, exact_names_decide_over_everything_else) {
  const LayerSelector selector =
      parse("{exact_layer_names: [a.fc1], layer_name_regex_pattern: '.*', layer_types: [all]}");
  EXPECT_TRUE(selector.selects("a.fc1"));
  EXPECT_FALSE(selector.selects("a.fc12"));
  EXPECT_FALSE(selector.selects("b"));
}

TEST(LayerSelector, the_regex_searches_and_decides_over_numbers_and_types) {
  const LayerSelector selector = parse("{layer_name_regex_pattern: 'fc[12]$', layer_types: [qkv]}");
  EXPECT_TRUE(selector.selects("model.3.fc2"));
  EXPECT_FALSE(selector.selects("model.3.fc2.x"));
  EXPECT_FALSE(selector.selects("model.3.qkv"));
}

TEST(LayerSelector, numbers_and_types_must_both_fit) {
  const LayerSelector selector = parse("{layer_numbers: [1, 5-8], layer_types: [fc1, qkv]}");
  EXPECT_TRUE(selector.selects("layers.1.fc1"));
  EXPECT_TRUE(selector.selects("layers.6.qkv"));
  EXPECT_FALSE(selector.selects("layers.6.proj"));
  EXPECT_FALSE(selector.selects("layers.9.fc1"));
}

TEST(LayerSelector, a_type_is_a_substring_and_not_a_pattern) {
  EXPECT_TRUE(parse("{layer_types: fc1}").selects("a.fc1"));
  EXPECT_FALSE(parse("{layer_types: fc1}").selects("cat"));
  EXPECT_FALSE(parse("{layer_types: [.c]}").selects("fc1"));
}

TEST(LayerSelector, all_is_case_insensitive_and_selects_every_type) {
  for (const char* all : {"all", "ALL", "[fc1, All]"}) {
    EXPECT_TRUE(parse(fmt::format("layer_types: {}", all)).selects("lm_head")) << all;
  }
}

TEST(LayerSelector, all_numbers_select_only_names_with_a_number) {
  EXPECT_TRUE(parse("layer_numbers: all").selects("layers.17.qkv"));
  EXPECT_FALSE(parse("layer_numbers: all").selects("lm_head"));
  EXPECT_FALSE(parse("layer_numbers: all").selects("mlp.fc1"));
}

TEST(LayerSelector, numbers_may_be_one_number_a_list_or_ranges) {
  for (const char* numbers : {"3", "'3'", "[3]", "2-4", "[1, 3-3]"}) {
    const LayerSelector selector = parse(fmt::format("layer_numbers: {}", numbers));
    EXPECT_TRUE(selector.selects("layers.3.qkv")) << numbers;
    EXPECT_FALSE(selector.selects("layers.33.qkv")) << numbers;
  }
}

TEST(LayerNumber, is_the_first_that_belongs_to_no_kind_of_layer) {
  EXPECT_EQ(layer_number("model.layers.3.mlp.fc1"), 3);
  EXPECT_EQ(layer_number("mlp.fc1.layers.4"), 4);
  EXPECT_EQ(layer_number("stage.0.layers.3"), 0);
  EXPECT_EQ(layer_number("Layer_12"), 12);
  EXPECT_EQ(layer_number("experts.gemm_7"), std::nullopt);
  EXPECT_EQ(layer_number("fc12"), std::nullopt);
  EXPECT_EQ(layer_number("lm_head"), std::nullopt);
  EXPECT_EQ(layer_number(""), std::nullopt);
  EXPECT_EQ(layer_number("99999999999999999999"), std::nullopt);
}

TEST(LayerSelector, wrong_selectors_are_errors_with_their_place) {
  EXPECT_EQ(get_error("{}"),
            "f.yaml:1:1: 'layers' must be a mapping with at least one of "
            "'layer_name_regex_pattern', 'layer_types', 'layer_numbers', 'exact_layer_names', not "
            "the mapping {}");
  EXPECT_EQ(get_error("{layer_type: fc1}"),
            "f.yaml:1:2: unknown key 'layer_type' in 'layers' (did you mean 'layer_types'?); it "
            "takes 'layer_name_regex_pattern', 'layer_types', 'layer_numbers', "
            "'exact_layer_names'");
  EXPECT_EQ(get_error("{layer_types: [1]}"),
            "f.yaml:1:16: 'layer_types' must be a list of strings, not the number 1");
  for (const char* wrong : {"8-5", "x", "-1", "1.5", "True", "1-2-3", "1-"}) {
    EXPECT_THAT(get_error(fmt::format("layer_numbers: [{}]", wrong)),
                ::testing::HasSubstr("f.yaml:1:17: 'layer_numbers' takes numbers from 0, ranges "
                                     "such as 5-8 (smaller first), or \"all\", not"))
        << wrong;
  }
  EXPECT_EQ(get_error("{layer_name_regex_pattern: [a]}"),
            "f.yaml:1:28: 'layer_name_regex_pattern' must be a string, not the list [\"a\"]");
  EXPECT_EQ(get_error("{layer_name_regex_pattern: '(a'}"),
            "f.yaml:1:28: the regular expression '(a' is refused at character 2: a group '(' is "
            "not closed");
}

TEST(PythonRegex, a_pattern_that_backtracks_without_end_is_an_error) {
  const PythonRegex regex("(a+)+$");
  EXPECT_TRUE(regex.search("baa"));
  EXPECT_THROW(regex.search(std::string(64, 'a') + 'b'), UsageError);
}

TEST(PythonRegex, invalid_utf_8_is_an_error) {
  EXPECT_THROW(PythonRegex("a").search("\xff"), UsageError);
}

}  // namespace
}  // namespace telens::config
