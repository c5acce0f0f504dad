#include "hooks/config/feature_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

namespace telens::config {
namespace {

constexpr std::string_view kHead =
    R"(<!-- Made by `telens features --markdown > docs/features.md`; edit the descriptions in features/. -->

# Features

What may stand under a namespace of a section; [configuration.md](configuration.md) explains the rest of the file.
`telens features NAME` prints the same of one feature. Every feature takes `enabled: True`, and those
with a schedule `freq`, `start_step`, `end_step` and `start_end_list`.

| feature | does |
|---|---|
)";

constexpr std::string_view kStatisticsHead = R"(
## Statistics

The names that a run file has. Those that are recorded always come with any other statistic of the
same tensor or cast.

| statistic | of | value | recorded |
|---|---|---|---|
)";

std::string_view get_origin(const StatisticDescription& statistic) {
  switch (statistic.source()) {
    case StatisticSource::tensor:
      return "the high-precision tensor";
    case StatisticSource::cast:
      return "its cast";
    case StatisticSource::scale:
      return "the scale of the cast";
    case StatisticSource::blocks:
      return "blocks of the tensor";
    case StatisticSource::scores:
      return "the scores of an attention";
    case StatisticSource::plugin:
      return "a plugin";
    case StatisticSource::feature:
      break;
  }
  return "a GEMM";
}

std::string code_list(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back(fmt::format("`{}`", word));
  return fmt::format("{}", fmt::join(quoted, ", "));
}

// A text on one line of a table: its line breaks and what would be read as a column's end or as
// HTML.
std::string cell(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const bool is_blank = c == '\n' || c == ' ';
    if (is_blank && line.ends_with(' ')) continue;
    if (c == '|' || c == '<') line += '\\';
    line += is_blank ? ' ' : c;
  }
  return line;
}

// "does this" -> "Does this."
std::string sentence(std::string text) {
  if (text.empty()) return text;
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text + '.';
}

// Lower case and hyphens, as GitHub makes it of a heading.
std::string get_anchor(const FeatureDescription& description) {
  std::string anchor;
  for (const char c : qualified_name(description)) {
    if (c != '.') anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return anchor;
}

std::string parameter_row(const Parameter& parameter) {
  std::string default_text = "none";
  if (parameter.required) default_text = "required";
  if (!parameter.default_value.is_null()) {
    default_text = fmt::format("`{}`", to_json(parameter.default_value));
  }
  std::string doc = cell(parameter.doc);
  if (!parameter.allowed_values.empty()) {
    doc += fmt::format("{}one of {}", doc.empty() ? "" : "; ", code_list(parameter.allowed_values));
  }
  return fmt::format("| `{}` | {} | {} | {} |\n", parameter.name, get_name(parameter.type),
                     default_text, doc);
}

std::string selection_rows(const FeatureDescription& description) {
  std::string rows;
  if (selects_gemms(description.selects)) {
    rows +=
        "| `gemms` or `gemms_struct` | a list | required | of `fprop`, `dgrad`, `wgrad`; or items "
        "with keys of their own |\n";
  }
  if (selects_tensors(description.selects)) {
    const std::string names = description.tensors.empty() ? "names that the program gives"
                                                          : code_list(description.tensors);
    rows += fmt::format(
        "| `tensors` or `tensors_struct` | a list | required | of {}; or items with keys of their "
        "own |\n",
        names);
  }
  return rows;
}

std::string indented(std::string_view text, std::string_view indent) {
  std::string lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines += fmt::format("{}{}\n", indent, text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string get_section(const FeatureDescription& description) {
  std::string text = fmt::format("\n## {}\n\n", qualified_name(description));
  if (!description.aliases.empty()) {
    text += fmt::format("Also called {}. ", code_list(description.aliases));
  }
  text += sentence(description.summary);
  if (description.modifies) text += " Two that modify the same tensor in the same GEMM conflict.";
  text += "\n";
  if (!description.doc.empty()) text += fmt::format("\n{}\n", description.doc);
  const std::string rows = selection_rows(description);
  if (!rows.empty() || !description.parameters.empty()) {
    text += "\n| parameter | type | default | |\n|---|---|---|---|\n" + rows;
    for (const Parameter& parameter : description.parameters) text += parameter_row(parameter);
  }
  if (!description.schedule) text += "\nIt takes no schedule.\n";
  if (!description.example.empty()) {
    text += fmt::format("\n```yaml\n{}:\n{}```\n", description.feature_namespace,
                        indented(description.example, "  "));
  }
  return text;
}

}  // namespace

std::string features_page(const Descriptions& descriptions,
                          std::span<const StatisticDescription> statistics) {
  std::string page(kHead);
  for (const FeatureDescriptionPtr& each : descriptions.all()) {
    page += fmt::format("| [{}](#{}) | {} |\n", qualified_name(*each), get_anchor(*each),
                        cell(each->summary));
  }
  for (const FeatureDescriptionPtr& each : descriptions.all()) page += get_section(*each);
  page += kStatisticsHead;
  for (const StatisticDescription& each : statistics) {
    page += fmt::format("| `{}` | {} | {} | {} |\n", each.name, get_origin(each), cell(each.doc),
                        each.kind == StatisticKind::counter ? "always" : "");
  }
  return page;
}

}  // namespace telens::config
