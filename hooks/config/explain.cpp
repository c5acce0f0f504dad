// The text of explain_features.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "hooks/config/feature_description.h"
#include "hooks/config/suggestions.h"

namespace telens::config {
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

}  // namespace telens::config
