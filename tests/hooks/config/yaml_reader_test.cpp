#include "hooks/config/yaml_reader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <ctime>

namespace telens::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string to_json(std::string_view yaml) {
  ErrorList errors;
  const Value value = read_yaml(yaml, "f.yaml", errors);
  return errors.empty() ? to_json(value) : errors.text();
}

TEST(YamlReader, reads_scalars_as_yaml_1_1_has_them) {
  EXPECT_EQ(to_json("[yes, No, on, OFF, True, false, y, n, yEs]"),
            R"([true, false, true, false, true, false, "y", "n", "yEs"])");
  EXPECT_EQ(to_json("[1, -2, +3, 017, 0x1F, 0b101, 1_000, 08, 0o17, 5-8]"),
            R"([1, -2, 3, 15, 31, 5, 1000, "08", "0o17", "5-8"])");
  EXPECT_EQ(to_json("[1.5, -0.25, .5, 1., 1.5e+3, 1e5, 1.5e3, 1.2.3, -.inf]"),
            R"([1.5, -0.25, 0.5, 1.0, 1500.0, "1e5", "1.5e3", "1.2.3", -.inf])");
  EXPECT_TRUE(std::isnan(plain_scalar(".nan").as_number()));
  EXPECT_EQ(to_json("[~, null, Null, NULL, '', 'null', \"~\"]"),
            R"([null, null, null, null, "", "null", "~"])");
  EXPECT_EQ(to_json("['yes', \"1\", !!str 1, !!int 2, !!float 3]"), R"(["yes", "1", "1", 2, 3])");
  EXPECT_EQ(to_json("[9223372036854775807, -9223372036854775808]"),
            "[9223372036854775807, -9223372036854775808]");
  EXPECT_EQ(to_json("['99999999999999999999', !!str 99999999999999999999]"),
            R"(["99999999999999999999", "99999999999999999999"])");
}

TEST(YamlReader, an_integer_beyond_64_bits_is_an_error_that_says_so) {
  for (const std::string_view integer :
       {"9223372036854775808", "-9223372036854775809", "99999999999999999999",
        "0xffffffffffffffffff", "!!int 99999999999999999999"}) {
    EXPECT_THAT(to_json(fmt::format("a: {}", integer)),
                AllOf(HasSubstr("f.yaml:1:4: the integer "), HasSubstr("does not fit 64 bits"),
                      Not(HasSubstr("not valid YAML"))))
        << integer;
  }
  EXPECT_LT(to_json("a: " + std::string(100'000, '9')).size(), 300U);
}

TEST(YamlReader, deep_nesting_is_an_error_that_says_so) {
  const auto repeated = [](std::string_view text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  std::string indented;
  for (int i = 0; i < 3000; ++i) indented += std::string(i, ' ') + "a:\n";
  std::string by_aliases = "a0: &a0 [x]\n";  // nested deeply by aliases only
  for (int i = 1; i < 1200; ++i) by_aliases += fmt::format("a{0}: &a{0} [*a{1}]\n", i, i - 1);
  for (const std::string& yaml :
       {repeated("[", 200'000) + repeated("]", 200'000), repeated("- ", 100'000) + "a",
        repeated("{a: ", 5000) + "1" + repeated("}", 5000), indented, by_aliases}) {
    EXPECT_THAT(to_json(yaml),
                AllOf(HasSubstr("more than 100 levels deep"), Not(HasSubstr("not valid YAML"))))
        << yaml.substr(0, 40);
  }
  const std::string deepest = repeated("[", 100) + repeated("]", 100);
  EXPECT_EQ(to_json(deepest), deepest);
}

TEST(YamlReader, a_chain_of_merges_is_not_nested) {
  for (const std::string_view merge : {"*a{0}", "[*a{0}]"}) {
    std::string yaml = "a0: &a0 {x: [1]}\n";
    for (int i = 1; i <= 300; ++i) {
      yaml += fmt::format("a{0}: &a{0}\n  <<: {1}\n", i, fmt::format(fmt::runtime(merge), i - 1));
    }
    EXPECT_THAT(to_json(yaml), HasSubstr(R"("a300": {"x": [1]}})")) << merge;
  }
}

TEST(YamlReader, nesting_inside_merged_mappings_is_counted) {
  std::string yaml = "a0: &a0 {x: 1}\n";
  for (int i = 1; i <= 101; ++i)
    yaml += fmt::format("a{0}: &a{0} {{<<: {{y: *a{1}}}}}\n", i, i - 1);
  EXPECT_THAT(to_json(yaml), HasSubstr("more than 100 levels deep"));
}

TEST(YamlReader, unterminated_text_is_an_error_with_position) {
  const auto bracket = [](int line, int column, std::string_view begin, std::string_view end) {
    return fmt::format("f.yaml:{}:{}: not valid YAML: the '{}' that begins here has no '{}'", line,
                       column, begin, end);
  };
  EXPECT_EQ(to_json("[[[["), bracket(1, 4, "[", "]"));
  EXPECT_EQ(to_json("a:\n  b: [[[[\n  c: 3\n"), bracket(2, 9, "[", "]"));
  EXPECT_EQ(to_json("a: {b: [1, 2\nc: 3\n"), bracket(1, 8, "[", "]"));
  EXPECT_EQ(to_json("a: {b: [1, 2}\n"), bracket(1, 8, "[", "]"));
  EXPECT_EQ(to_json("a: [x, {b: 1]\n"), bracket(1, 8, "{", "}"));
  EXPECT_EQ(to_json("a: [x,  # ]\n  ']', \"]\", don't\nc: 3\n"), bracket(1, 4, "[", "]"));
  EXPECT_EQ(to_json("\xef\xbb\xbf[1, 2"), bracket(1, 1, "[", "]"));
  EXPECT_EQ(to_json("a: [1, 2\n"), bracket(1, 4, "[", "]"));
  EXPECT_EQ(to_json("a: \"abc\nb: 3\n"),
            "f.yaml:1:4: not valid YAML: the \" that begins here is not closed");
  EXPECT_EQ(to_json("a: 1\n'b: 3\n"),
            "f.yaml:2:1: not valid YAML: the ' that begins here is not closed");
}

TEST(YamlReader, names_a_tab_that_indents) {
  constexpr std::string_view kTab = ": not valid YAML: a tab indents this line; expected blanks";
  EXPECT_EQ(to_json("a:\n\tb: 1\n"), fmt::format("f.yaml:2:1{}", kTab));
  EXPECT_EQ(to_json("a:\n  b:\n  \tc: 1\n"), fmt::format("f.yaml:3:3{}", kTab));
  EXPECT_EQ(to_json("\xef\xbb\xbf"
                    "a: {\n\tb: 1}\n"),
            R"({"a": {"b": 1}})");
}

TEST(YamlReader, terminated_text_is_accepted) {
  EXPECT_EQ(to_json("a: ['it''s', \"a \\\" ]\", don't, \"\"]"),
            R"({"a": ["it's", "a \" ]", "don't", ""]})");
  EXPECT_EQ(to_json("\xef\xbb\xbf'a': \"b\""), R"({"a": "b"})");
  EXPECT_EQ(to_json("a: |\n  \"open [\nb: >-\n  'open {\n"),
            R"({"a": "\"open [\n", "b": "'open {"})");
  EXPECT_EQ(to_json("a: &x \"b\"\r\nc: !!str 'd'\r\n*x : [\"e\",\r\n 'f']"),
            R"({"a": "b", "c": "d", "b": ["e", "f"]})");
  EXPECT_EQ(to_json("\xc3\xa4\xe2\x82\xac: \"\xc3\xb6\"\nb: 'c'"),
            "{\"\xc3\xa4\xe2\x82\xac\": \"\xc3\xb6\", \"b\": \"c\"}");
  EXPECT_EQ(to_json("? [a, b]\n: c\n"), "f.yaml:1:3: not valid YAML: a key must be a plain word");
}

// The least processor time of several runs, because other programs may slow down some of them.
double seconds_to_read(const std::string& yaml) {
  double best = INFINITY;
  for (int i = 0; i < 3; ++i) {
    const std::clock_t begin = std::clock();
    EXPECT_NE(to_json(yaml), "");
    best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return best;
}

TEST(YamlReader, takes_time_in_proportion_to_the_number_of_keys) {
  const auto mapping = [](int keys, std::string_view merged) {
    std::string yaml = fmt::format("a: &a {{}}\nb:\n  {}\n", merged);
    for (int i = 0; i < keys; ++i) yaml += fmt::format("  k{}: 1\n", i);
    return yaml;
  };
  constexpr int kFew = 4000;
  constexpr int kTimes = 16;
  for (const std::string_view merged : {"z: 1", "<<: *a"}) {
    const double few = seconds_to_read(mapping(kFew, merged));
    // Half of what quadratic time would take; clocks and caches change linear time by much less.
    EXPECT_LT(seconds_to_read(mapping(kTimes * kFew, merged)), kTimes * kTimes / 2 * few) << merged;
  }
}

TEST(YamlReader, an_empty_text_is_null) {
  EXPECT_EQ(to_json(""), "null");
  EXPECT_EQ(to_json("# nothing\n"), "null");
  EXPECT_EQ(to_json("---\n"), "null");
}

TEST(YamlReader, keeps_the_order_of_keys_and_the_place_of_everything) {
  ErrorList errors;
  const Value value = read_yaml("b: 1\na:\n  - x\n  - {c: y}\n", "f.yaml", errors);
  ASSERT_TRUE(errors.empty());
  EXPECT_EQ(value.as_map()[0].key, "b");
  EXPECT_EQ(to_string(value.as_map()[1].key_location), "f.yaml:2:1");
  const Value& item = value.find("a")->as_list()[1];
  EXPECT_EQ(to_string(item.location()), "f.yaml:4:5");
  EXPECT_EQ(to_string(item.find("c")->location()), "f.yaml:4:9");
}

TEST(YamlReader, merge_keys_give_way_to_own_keys_and_earlier_maps_win) {
  EXPECT_EQ(to_json("a: &a {x: 1, y: 1}\nb: {<<: *a, y: 2, z: 3}"),
            R"({"a": {"x": 1, "y": 1}, "b": {"x": 1, "y": 2, "z": 3}})");
  EXPECT_EQ(to_json("- &a {x: 1}\n- &b {x: 2, y: 2}\n- {<<: [*a, *b]}"),
            R"([{"x": 1}, {"x": 2, "y": 2}, {"x": 1, "y": 2}])");
  EXPECT_EQ(to_json("{'<<': 1}"), R"({"<<": 1})");
  EXPECT_EQ(to_json("a:\n  <<: 1\n"),
            "f.yaml:2:7: a merge key '<<' needs a mapping or a list of mappings, not the number 1");
}

TEST(YamlReader, an_alias_is_the_value_of_its_anchor) {
  EXPECT_EQ(to_json("a: &s fc1\nb: [*s, *s]\n*s : 1"),
            R"({"a": "fc1", "b": ["fc1", "fc1"], "fc1": 1})");
}

TEST(YamlReader, a_duplicate_key_is_an_error_that_names_both_places) {
  EXPECT_EQ(to_json("a: 1\nb: 2\na: 3\n"),
            "f.yaml:3:1: the key 'a' occurs a second time (first in f.yaml:1:1); keep one");
  EXPECT_THAT(to_json("a: {<<: {}, <<: {}}"), HasSubstr("'<<' occurs a second time"));
}

TEST(YamlReader, invalid_yaml_is_an_error_with_position) {
  EXPECT_THAT(to_json("a: 1\nb: [1, 2\n"), HasSubstr("f.yaml:"));
  EXPECT_THAT(to_json("a: 1\nb: [1, 2\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(to_json("a: *nobody"), HasSubstr("f.yaml:1:4: not valid YAML"));
  EXPECT_THAT(to_json("? [a, b]\n: 1"), HasSubstr("a key must be a plain word"));
  EXPECT_THAT(to_json("a: 1\n---\nb: 2"), HasSubstr("a second YAML document"));
  EXPECT_THAT(to_json("a: !!int fc1"), HasSubstr("f.yaml:1:4: the tag"));
  EXPECT_THAT(to_json("a: &x [*x]"), HasSubstr("an alias inside its own anchor"));
}

TEST(YamlReader, exponential_aliases_are_rejected_before_expansion) {
  std::string yaml = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    yaml += fmt::format("a{0}: &a{0} [", i);
    for (int j = 0; j < 10; ++j) yaml += fmt::format("*a{}, ", i - 1);
    yaml += "]\n";
  }
  EXPECT_THAT(to_json(yaml), HasSubstr("more than a million values"));
}

TEST(YamlReader, too_many_values_without_an_alias_are_not_blamed_on_aliases) {
  std::string yaml = "sections:\n";
  for (int i = 0; i < 100'000; ++i) yaml += "  - {a: [1, 1, 1, 1, 1, 1, 1, 1, 1]}\n";
  EXPECT_THAT(to_json(yaml),
              HasSubstr("it has more than a million values after its aliases are expanded"));
}

TEST(Value, copy_with_a_new_key_does_not_change_the_original) {
  const Value map(Value::Map{{"a", 1}, {"b", 2}});
  EXPECT_EQ(to_json(map.with("a", "x").with("c", true)), R"({"a": "x", "b": 2, "c": true})");
  EXPECT_EQ(to_json(map.without("a")), R"({"b": 2})");
  EXPECT_EQ(to_json(map), R"({"a": 1, "b": 2})");
}

TEST(Value, json_is_read_back_as_the_same_value) {
  const Value value(Value::Map{{"text", "a\"b\\c\nd\te\x01"},
                               {"numbers", Value(Value::List{1, -2.5, 1e20, 1e-7, 100.0})},
                               {"others", Value(Value::List{true, nullptr, "yes", "1"})},
                               {"infinity", HUGE_VAL}});
  ErrorList errors;
  EXPECT_EQ(read_yaml(to_json(value), "json", errors), value) << to_json(value);
  EXPECT_TRUE(errors.empty()) << errors.text();
}

TEST(Value, a_description_cuts_long_values_between_characters) {
  const Value list(Value::List{fmt::format("{:a<54}\xc3\xa9\xc3\xa9", "")});
  EXPECT_EQ(describe(list), fmt::format("the list [\"{:a<54}...", ""));
}

}  // namespace
}  // namespace telens::config
