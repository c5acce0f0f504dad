#include "hooks/config/feature_description.h"

#include <gmock/gmock.h>

#include "core/base/error.h"
#include "tests/hooks/config/test_features.h"

namespace telens::config {
namespace {

using ::testing::ElementsAre;

TEST(Descriptions, duplicate_feature_is_an_error_that_names_both_owners) {
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

TEST(Options, have_parameters_that_are_parsed_once_each) {
  struct Words {
    std::size_t count;
  };
  std::vector<std::string> parsed;
  const ParameterParser parse = [&](const Value& value, ErrorList&) {
    parsed.push_back(to_json(value));
    return make_options(Words{as_list(value).size()});
  };
  Descriptions descriptions;
  descriptions.add({.feature_namespace = "telens",
                    .name = "Round",
                    .selects = Selects::tensors,
                    .tensors = all_tensor_names(),
                    .parameters = {{.name = "words", .type = ParameterType::list, .parse = parse},
                                   {.name = "more",
                                    .type = ParameterType::list,
                                    .default_value = Value(Value::List{Value("z")}),
                                    .parse = parse}},
                    .parse = [](const ParameterValues& parameters, ErrorList&) {
                      EXPECT_EQ(get_options<Words>(*parameters.made("more")).count, 1U);
                      EXPECT_EQ(parameters.made("unknown"), nullptr);
                      return parameters.made("words");
                    }});
  const Config config = load_config_text(
      "s: {enabled: on, layers: {layer_types: all}, telens: {Round: {enabled: on, words: a,"
      "tensors_struct: [{tensor: weight}, {tensor: output}, {tensor: dgrad, words: [b, c]}]}}}",
      "f", descriptions);
  const std::vector<Selection>& selections = config.entries_for("x").at(0)->selections;
  EXPECT_THAT(parsed, ElementsAre("\"a\"", "[\"b\", \"c\"]", "[\"z\"]"));
  EXPECT_EQ(selections.at(1).options_as<Words>().count, 1U);
  EXPECT_EQ(selections.at(2).options_as<Words>().count, 2U);
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

TEST(Explain, prints_the_whole_description) {
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

On models that telens.watch attaches to: yes

Example:
Round:
  enabled: True
)");
}

}  // namespace
}  // namespace telens::config
