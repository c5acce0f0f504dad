#include "features/fake_quant_options.h"

#include <algorithm>
#include <array>
#include <optional>

#include "hooks/config/suggestions.h"

namespace telens::features {
namespace {

constexpr std::string_view kQuantFormat = "quant_format";

struct NamedFormat {
  std::string_view name;
  std::optional<FormatId> format;  // empty: known, but not emulated yet
};
constexpr std::array<NamedFormat, 4> kFormats{{{"FP8E4M3", FormatId::e4m3},
                                               {"FP8E5M2", FormatId::e5m2},
                                               {"MXFP8E4M3", std::nullopt},
                                               {"MXFP8E5M2", std::nullopt}}};

std::vector<std::string> emulated_names() {
  std::vector<std::string> names;
  for (const NamedFormat& format : kFormats) {
    if (format.format) names.emplace_back(format.name);
  }
  return names;
}

void validate_format(const config::Value& value, config::ErrorList& errors) {
  const std::string& text = value.as_string();
  const std::vector<std::string> names = emulated_names();
  const auto found = std::ranges::find(kFormats, text, &NamedFormat::name);
  if (found == kFormats.end()) {
    errors.add(value.location(), "'{}' cannot be '{}'{}; expected one of {}", kQuantFormat, text,
               config::suggestion(text, names), config::quoted_list(names));
  } else if (!found->format) {
    errors.add(value.location(),
               "'{}': block formats such as '{}' cannot be emulated by this version; expected one "
               "of {}",
               kQuantFormat, text, config::quoted_list(names));
  }
}

}  // namespace

FakeQuantOptions FakeQuantOptions::from(const config::Value& parameters) {
  const config::Value& format = *parameters.find(kQuantFormat);
  config::ErrorList errors;
  validate_format(format, errors);
  errors.raise_if_any();
  return {*std::ranges::find(kFormats, format.as_string(), &NamedFormat::name)->format};
}

config::FeatureDescription fake_quant_description() {
  return {
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "FakeQuant",
      .summary = "quantizes and dequantizes; the GEMM runs in high precision",
      .doc =
          "Each chosen tensor is cast to the format with a scale from its own amax, and back, so\n"
          "that the GEMM sees the values that the format can hold. The chosen GEMMs run in high\n"
          "precision, whatever the recipe.",
      .example =
          "FakeQuant:\n"
          "  enabled: True\n"
          "  quant_format: FP8E5M2\n"
          "  gemms_struct:\n"
          "    - gemm: fprop\n"
          "      tensors: [activation, weight]\n"
          "      quant_format: FP8E4M3\n"
          "    - gemm: dgrad\n"
          "      tensors: [gradient]\n",
      .selects = config::Selects::gemms_and_tensors,
      .tensors = config::all_tensor_names(),
      .modifies = true,
      .parameters = {{.name = std::string(kQuantFormat),
                      .type = config::ParameterType::string,
                      .required = true,
                      .doc = "FP8E4M3 or FP8E5M2",
                      .validate = validate_format}},
      .recorded = config::nothing_recorded,
  };
}

}  // namespace telens::features
