#include "hooks/config/feature_description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "core/base/error.h"
#include "hooks/config/suggestions.h"

namespace telens::config {
namespace {

bool is_called(const FeatureDescription& description, std::string_view name) {
  return description.name == name ||
         std::ranges::find(description.aliases, name) != description.aliases.end();
}

}  // namespace

std::string_view get_name(ParameterType type) {
  switch (type) {
    case ParameterType::boolean:
      return "true or false";
    case ParameterType::integer:
      return "an integer";
    case ParameterType::number:
      return "a number";
    case ParameterType::string:
      return "a string";
    case ParameterType::list_of_strings:
      return "a list of strings";
    case ParameterType::list:
      return "a list";
    case ParameterType::map:
      return "a mapping";
    case ParameterType::any:
      break;
  }
  return "any value";
}

std::vector<std::string> nothing_recorded(const Selection&) { return {}; }

std::string qualified_name(const FeatureDescription& description) {
  return description.feature_namespace + '.' + description.name;
}

std::string describe_attached(const FeatureDescription& description) {
  if (!description.attached.empty()) return description.attached;
  if (description.opaque) return "unknown";
  return description.modifies ? kNeedsFp8Modules : "yes";
}

std::vector<std::string> all_tensor_names() {
  std::vector<std::string> names;
  for (const TensorName tensor : kLinearTensors) names.emplace_back(get_name(tensor));
  return names;
}

std::vector<std::string> with_attention(std::vector<std::string> names, bool scores) {
  for (const TensorName tensor : kAttentionTensors) {
    if (scores || tensor != TensorName::scores) names.emplace_back(get_name(tensor));
  }
  return names;
}

std::vector<std::string> gemm_input_names() {
  std::vector<std::string> names;
  for (const TensorName tensor : kAllTensors) {
    if (is_gemm_input(tensor)) names.emplace_back(get_name(tensor));
  }
  return names;
}

void Descriptions::add(FeatureDescription description) {
  std::vector<std::string> names = description.aliases;
  names.push_back(description.name);
  for (const std::string& name : names) {
    if (const auto other = find(description.feature_namespace, name)) {
      raise<ConfigError>(
          "the feature {}.{} of {} cannot be registered: {} has registered that name already; "
          "rename one of the two",
          description.feature_namespace, name, description.owner, other->owner);
    }
  }
  namespaces_.insert(description.feature_namespace);
  all_.push_back(std::make_shared<const FeatureDescription>(std::move(description)));
}

FeatureDescriptionPtr Descriptions::find(std::string_view feature_namespace,
                                         std::string_view name) const {
  const auto found = std::ranges::find_if(all_, [&](const FeatureDescriptionPtr& description) {
    return description->feature_namespace == feature_namespace && is_called(*description, name);
  });
  return found == all_.end() ? nullptr : *found;
}

std::vector<FeatureDescriptionPtr> Descriptions::find_all(std::string_view name) const {
  std::vector<FeatureDescriptionPtr> found;
  for (const FeatureDescriptionPtr& description : all_) {
    const bool qualified = name.starts_with(description->feature_namespace + '.');
    const std::string_view bare =
        qualified ? name.substr(description->feature_namespace.size() + 1) : name;
    if (is_called(*description, bare)) found.push_back(description);
  }
  return found;
}

std::vector<std::string> Descriptions::names(std::string_view feature_namespace) const {
  std::vector<std::string> names;
  for (const FeatureDescriptionPtr& description : all_) {
    if (description->feature_namespace != feature_namespace) continue;
    names.push_back(description->name);
    names.insert(names.end(), description->aliases.begin(), description->aliases.end());
  }
  return names;
}

// ---- checks of parameters

namespace {

bool is_list_type(ParameterType type) {
  return type == ParameterType::list || type == ParameterType::list_of_strings;
}

bool fits(ParameterType type, const Value& value) {
  switch (type) {
    case ParameterType::boolean:
      return value.is_bool();
    case ParameterType::integer:
      return value.is_integer();
    case ParameterType::number:
      return value.is_number();
    case ParameterType::string:
      return value.is_string();
    case ParameterType::list_of_strings:
      return std::ranges::all_of(as_list(value), &Value::is_string);
    case ParameterType::list:
      return !value.is_null();
    case ParameterType::map:
      return value.is_map();
    case ParameterType::any:
      break;
  }
  return true;
}

}  // namespace

Value::List as_list(const Value& value) {
  return value.is_list() ? value.as_list() : Value::List{value};
}

void check_not_empty(const Value& value, std::string_view key, ErrorList& errors) {
  if (!value.is_list() || !value.as_list().empty()) return;
  errors.add(value.location(),
             "'{}' is empty; list at least one, or write 'enabled: False' to disable the "
             "feature or section",
             key);
}

OptionsPtr check_parameter(const Parameter& parameter, const Value& value, ErrorList& errors) {
  if (!fits(parameter.type, value)) {
    errors.add(value.location(), "'{}' must be {}, not {}", parameter.name,
               get_name(parameter.type), describe(value));
    return nullptr;
  }
  if (parameter.required && is_list_type(parameter.type)) {
    check_not_empty(value, parameter.name, errors);
  }
  bool right = true;
  if (!parameter.allowed_values.empty()) {
    for (const Value& item : as_list(value)) {
      const auto& allowed = parameter.allowed_values;
      if (std::ranges::find(allowed, item.as_string()) != allowed.end()) continue;
      errors.add(item.location(), "'{}' cannot be '{}'{}; expected one of {}", parameter.name,
                 item.as_string(), suggestion(item.as_string(), allowed), quoted_list(allowed));
      right = false;
    }
  }
  if (!right) return nullptr;
  if (parameter.validate) parameter.validate(value, errors);
  return parameter.parse ? parameter.parse(value, errors) : nullptr;
}

Value completed(const Parameter& parameter, const Value& value) {
  return is_list_type(parameter.type) ? Value(Value(as_list(value)), value.location()) : value;
}

Value complete_parameters(const Value& keys, const FeatureDescription& description,
                          ErrorList& errors) {
  Value::Map parameters;
  for (const Parameter& parameter : description.parameters) {
    const Value* value = keys.find(parameter.name);
    if (!value && parameter.required) {
      errors.add(keys.location(), "'{}' is missing; it must be {}{}", parameter.name,
                 get_name(parameter.type),
                 parameter.allowed_values.empty()
                     ? ""
                     : ", one of " + quoted_list(parameter.allowed_values));
    }
    const Value& given = value ? *value : parameter.default_value;
    if (!value && given.is_null()) continue;
    parameters.push_back({parameter.name, completed(parameter, given)});
  }
  return Value(Value(std::move(parameters)), keys.location());
}

// ---- the text of explain_features

namespace {

std::string explain(const Parameter& parameter) {
  std::string text = fmt::format("  {}: {}", parameter.name, get_name(parameter.type));
  if (parameter.required) {
    text += ", required";
  } else if (!parameter.default_value.is_null()) {
    text += ", default " + to_json(parameter.default_value);
  }
  if (!parameter.doc.empty()) text += "\n      " + parameter.doc;
  if (!parameter.allowed_values.empty()) {
    text += "\n      one of " + quoted_list(parameter.allowed_values);
  }
  return text + '\n';
}

std::string explain_selection(const FeatureDescription& description) {
  std::string text;
  if (selects_gemms(description.selects)) {
    text += "  gemms: list of 'fprop', 'dgrad', 'wgrad'; or gemms_struct: [{gemm: fprop, ...}]\n";
  }
  if (selects_tensors(description.selects)) {
    const std::string names = description.tensors.empty() ? "names that the program gives"
                                                          : quoted_list(description.tensors);
    text +=
        fmt::format("  tensors: list of {}; or tensors_struct: [{{tensor: ..., ...}}]\n", names);
  }
  if (description.schedule) {
    text +=
        "  freq: every which iteration, default 1\n"
        "  start_step, end_step: first and last iteration, default 0 and none (-1)\n"
        "  start_end_list: [[first, last], ...] in place of the two\n";
  }
  return text;
}

}  // namespace

std::string explain(const FeatureDescription& description) {
  std::string text = qualified_name(description);
  if (!description.aliases.empty()) {
    text += fmt::format(" (also {})", fmt::join(description.aliases, ", "));
  }
  if (!description.summary.empty()) text += ": " + description.summary;
  text += '\n';
  if (!description.doc.empty()) text += '\n' + description.doc + '\n';
  if (!description.opaque) {
    text += "\nOptions:\n  enabled: true or false, required\n" + explain_selection(description);
    for (const Parameter& parameter : description.parameters) text += explain(parameter);
    text += fmt::format("\nOn models that telens.watch attaches to: {}\n",
                        describe_attached(description));
  }
  if (!description.example.empty()) text += "\nExample:\n" + description.example;
  return text;
}

// ---- the page docs/features.md

namespace {

constexpr std::string_view kHead =
    R"(<!-- Generated by `telens features --markdown > docs/features.md`; edit the descriptions in features/. -->

# Features

The features of a section with their parameters; [the debug config](configuration.md) explains the rest of the file.
`telens features NAME` prints one of them. Every feature has `enabled: True`, and features with a schedule have
`freq`, `start_step`, `end_step` and `start_end_list`. The last column says if a feature works on
[ordinary torch models](attach.md) that `telens.watch` attaches to.

| feature | does | attached |
|---|---|---|
)";

constexpr std::string_view kStatisticsHead = R"(
## Statistics

The names in a run file. Statistics marked as always recorded are added to any other statistic of the same tensor or
cast.

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

// Escapes a text for a table cell: line breaks, column separators and HTML characters.
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

// The anchor that GitHub generates for a heading: lower case with hyphens.
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
        "| `gemms` or `gemms_struct` | a list | required | names among `fprop`, `dgrad`, "
        "`wgrad`; or items with separate keys |\n";
  }
  if (selects_tensors(description.selects)) {
    const std::string names =
        description.tensors.empty() ? "the program's own names" : code_list(description.tensors);
    rows += fmt::format(
        "| `tensors` or `tensors_struct` | a list | required | of {}; or items with their own "
        "keys |\n",
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
  if (description.modifies) text += " Only one feature may modify a tensor in a GEMM.";
  text += "\n";
  if (!description.doc.empty()) text += fmt::format("\n{}\n", description.doc);
  const std::string rows = selection_rows(description);
  if (!rows.empty() || !description.parameters.empty()) {
    text += "\n| parameter | type | default | |\n|---|---|---|---|\n" + rows;
    for (const Parameter& parameter : description.parameters) text += parameter_row(parameter);
  }
  if (!description.schedule) text += "\nIt does not accept a schedule.\n";
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
    page += fmt::format("| [{}](#{}) | {} | {} |\n", qualified_name(*each), get_anchor(*each),
                        cell(each->summary), cell(describe_attached(*each)));
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
