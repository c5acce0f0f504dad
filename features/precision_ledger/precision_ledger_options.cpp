#include "features/precision_ledger/precision_ledger_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/error.h"
#include "hooks/config/feature_description.h"
#include "hooks/config/suggestions.h"

namespace telens::features {
namespace {

using config::ErrorList;
using config::Value;

constexpr std::string_view kExpect = "expect";

bool is_fp8(const Precision& precision) {
  return precision.element == "E4M3" || precision.element == "E5M2";
}

struct ExpectedFormat {
  std::string_view name;
  bool (*holds)(const Precision&);
};

// Formats in addition to the schemes whose names are formats.
constexpr std::array kExpectedFormats{
    ExpectedFormat{"FP8", is_fp8},
    ExpectedFormat{"E4M3", [](const Precision& p) { return p.element == "E4M3"; }},
    ExpectedFormat{"E5M2", [](const Precision& p) { return p.element == "E5M2"; }},
    ExpectedFormat{"BF16", [](const Precision& p) { return p.element == "BF16"; }},
    ExpectedFormat{"FP16", [](const Precision& p) { return p.element == "FP16"; }},
    ExpectedFormat{"FP32", [](const Precision& p) { return p.element == "FP32"; }},
    ExpectedFormat{"quantized", [](const Precision& p) { return p.scaling.has_value(); }},
    ExpectedFormat{"high_precision", [](const Precision& p) { return !p.scaling.has_value(); }},
};

std::vector<std::string> scheme_names() {
  std::vector<std::string> names;
  for (const ScalingMode mode : kAllScalingModes) {
    // A scheme is a format if the scales of its blocks have fewer bits than FP32.
    if (scheme(mode).scale_format != FormatId::fp32) names.emplace_back(telens::get_name(mode));
  }
  return names;
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const ExpectedFormat& format : kExpectedFormats) names.emplace_back(format.name);
  const std::vector<std::string> schemes = scheme_names();
  names.insert(names.begin() + 1, schemes.begin(), schemes.end());  // after FP8
  return names;
}

// Reads a key of a rule into the matching members. Adds mistakes to `errors`.
void read_format(const Value& value, ExpectedPrecision& rule, ErrorList& errors) {
  const std::vector<std::string> names = format_names();
  if (!value.is_string()) {
    errors.add(value.location(), "a format must be one of {}, not {}", config::quoted_list(names),
               config::describe(value));
  } else if (std::ranges::find(names, value.as_string()) == names.end()) {
    errors.add(value.location(), "unknown format '{}'{}; expected one of {}", value.as_string(),
               config::suggestion(value.as_string(), names), config::quoted_list(names));
  } else {
    rule.format = value.as_string();
  }
}

void read_layers(const Value& value, ExpectedPrecision& rule, ErrorList& errors) {
  if (!value.is_string()) {
    errors.add(value.location(), "'layers' must be a regular expression, not {}",
               config::describe(value));
    return;
  }
  try {
    rule.layers.emplace(value.as_string());
  } catch (const UsageError& error) {
    errors.add(value.location(), "'layers': {}", error.what());
  }
}

// Reads a list of names, or a single name.
template <typename Name>
void read_names(const Value& value, std::optional<Name> (*parse)(std::string_view),
                const std::vector<std::string>& known, std::vector<Name>& names,
                ErrorList& errors) {
  config::check_not_empty(value, "a list of names", errors);
  for (const Value& item : config::as_list(value)) {
    const auto is_known = [&] { return std::ranges::find(known, item.as_string()) != known.end(); };
    if (item.is_string() && is_known()) {
      names.push_back(*parse(item.as_string()));
    } else {
      errors.add(item.location(), "expected one of {}, not {}{}", config::quoted_list(known),
                 config::describe(item),
                 item.is_string() ? config::suggestion(item.as_string(), known) : "");
    }
  }
}

ExpectedPrecision parse_rule(const Value& item, ErrorList& errors) {
  static const std::vector<std::string> kKeys{"format", "layers", "gemms", "tensors"};
  static const std::vector<std::string> kGemms{"fprop", "dgrad", "wgrad"};
  ExpectedPrecision rule;
  if (!item.is_map()) {
    read_format(item, rule, errors);
    return rule;
  }
  for (const config::MapEntry& entry : item.as_map()) {
    if (entry.key == "format") {
      read_format(entry.value, rule, errors);
    } else if (entry.key == "layers") {
      read_layers(entry.value, rule, errors);
    } else if (entry.key == "gemms") {
      read_names(entry.value, gemm_from_name, kGemms, rule.gemms, errors);
    } else if (entry.key == "tensors") {
      read_names(entry.value, tensor_from_name, config::gemm_input_names(), rule.tensors, errors);
    } else {
      errors.add(entry.key_location, "unknown key '{}'{}; a rule of '{}' takes {}", entry.key,
                 config::suggestion(entry.key, kKeys), kExpect, config::quoted_list(kKeys));
    }
  }
  if (item.find("format") == nullptr) {
    errors.add(item.location(), "a rule of '{}' needs a 'format', one of {}", kExpect,
               config::quoted_list(format_names()));
  }
  return rule;
}

config::OptionsPtr parse_rules(const Value& value, ErrorList& errors) {
  config::check_not_empty(value, kExpect, errors);
  PrecisionLedgerOptions options;
  for (const Value& item : config::as_list(value)) {
    options.expect.push_back(parse_rule(item, errors));
  }
  return config::make_options(std::move(options));
}

config::OptionsPtr ledger_options(const config::ParameterValues& parameters, ErrorList&) {
  const config::OptionsPtr rules = parameters.made(kExpect);
  return rules ? rules : config::make_options(PrecisionLedgerOptions());
}

template <typename T>
bool among(const std::vector<T>& chosen, T one) {
  return chosen.empty() || std::ranges::find(chosen, one) != chosen.end();
}

}  // namespace

std::string describe(const Precision& precision) {
  return precision.scaling ? fmt::format("{} under {} scaling", precision.element,
                                         telens::get_name(*precision.scaling))
                           : std::string(precision.element);
}

bool ExpectedPrecision::is_about(std::string_view layer, Gemm gemm, TensorName tensor) const {
  return among(gemms, gemm) && among(tensors, tensor) && (!layers || layers->search(layer));
}

bool ExpectedPrecision::holds(const Precision& precision) const {
  const auto known = std::ranges::find(kExpectedFormats, format, &ExpectedFormat::name);
  if (known != kExpectedFormats.end()) return known->holds(precision);
  return precision.scaling && telens::get_name(*precision.scaling) == format;
}

config::FeatureDescription precision_ledger_description() {
  return {
      .feature_namespace = std::string(config::kTelensNamespace),
      .name = "PrecisionLedger",
      .summary = "records the precision and kernel of each GEMM; can enforce expected formats",
      .doc =
          "Records the requested and the actual precision of the operands of each GEMM: format,\n"
          "scaling, the kernel that ran, and the reason for any deviation from the recipe. Rows\n"
          "are written only when something changes; `telens ledger RUN` prints them. For each\n"
          "attention, it records the LibTorch kernel that ran (flash, memory-efficient, cuDNN,\n"
          "math) and why a faster one was excluded. Rules of `expect` do not apply to\n"
          "these.\n"
          "\n"
          "`expect` lists required formats. A rule names a format and optionally limits it to\n"
          "layers (a regular expression), gemms and tensors. If several rules match, the last\n"
          "one counts. GEMMs that violate a rule stop the run: step() throws RunStopped, which\n"
          "names all of them.",
      .example =
          "PrecisionLedger:\n"
          "  enabled: True\n"
          "  expect:\n"
          "    - FP8\n"
          "    - {format: high_precision, layers: lm_head}\n"
          "    - {format: E5M2, gemms: [dgrad, wgrad], tensors: gradient}\n",
      .parameters = {{.name = std::string(kExpect),
                      .type = config::ParameterType::list,
                      .doc = fmt::format(
                          "rules: a format, or {{format:, layers:, gemms:, tensors:}}. Formats: "
                          "FP8\n      (E4M3 or E5M2, however scaled), {}, E4M3, E5M2, BF16, "
                          "FP16, FP32,\n      quantized, high_precision",
                          fmt::join(scheme_names(), ", ")),
                      .parse = parse_rules,
                      .needs_every_iteration = true}},
      .parse = ledger_options,
      .recorded = config::nothing_recorded,
      .attached = config::kNeedsFp8Modules,
  };
}

}  // namespace telens::features
