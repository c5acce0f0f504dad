#include "features/fake_quant/fake_quant_options.h"

#include <algorithm>
#include <array>
#include <optional>

#include "hooks/config/suggestions.h"

namespace telens::features {
namespace {

constexpr std::string_view kQuantFormat = "quant_format";

struct NamedFormat {
  std::string_view name;
  FakeQuantOptions options;
};
constexpr std::array kFormats{
    NamedFormat{"FP8E4M3", {FormatId::e4m3, std::nullopt}},
    NamedFormat{"FP8E5M2", {FormatId::e5m2, std::nullopt}},
    NamedFormat{"MXFP8E4M3", {FormatId::e4m3, RecipeId::mxfp8}},
    NamedFormat{"MXFP8E5M2", {FormatId::e5m2, RecipeId::mxfp8}},
    NamedFormat{"FP8BLOCKE4M3", {FormatId::e4m3, RecipeId::fp8_block_scaling}},
    NamedFormat{"FP8BLOCKE5M2", {FormatId::e5m2, RecipeId::fp8_block_scaling}},
    NamedFormat{"NVFP4", {FormatId::e2m1, RecipeId::nvfp4}},
};

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const NamedFormat& format : kFormats) names.emplace_back(format.name);
  return names;
}

void validate_format(const config::Value& value, config::ErrorList& errors) {
  const std::string& text = value.as_string();
  const std::vector<std::string> names = format_names();
  if (std::ranges::find(names, text) != names.end()) return;
  errors.add(value.location(), "'{}' cannot be '{}'{}; expected one of {}", kQuantFormat, text,
             config::suggestion(text, names), config::quoted_list(names));
}

config::OptionsPtr parse_options(const config::Value& parameters, config::ErrorList&) {
  const std::string& format = parameters.find(kQuantFormat)->as_string();
  return config::make_options(std::ranges::find(kFormats, format, &NamedFormat::name)->options);
}

}  // namespace

std::string_view FakeQuantOptions::name() const {
  return std::ranges::find(kFormats, *this, &NamedFormat::options)->name;
}

config::FeatureDescription fake_quant_description() {
  return {
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "FakeQuant",
      .summary = "quantizes and dequantizes; the GEMM runs in high precision",
      .doc =
          "Each chosen tensor is cast to the format and back, so that the GEMM sees the values "
          "that\n"
          "the format can hold. The chosen GEMMs run in high precision, whatever the recipe.\n"
          "FP8E4M3 and FP8E5M2 have one scale, from the tensor's own amax. The others have a scale "
          "a\n"
          "block, and blocks lie along the dimension that the GEMM sums over (of outputs: along\n"
          "rows): MXFP8E4M3 and MXFP8E5M2 32 elements; FP8BLOCKE4M3 and FP8BLOCKE5M2 128, weights\n"
          "128x128; NVFP4 16, weights 16x16, and what feeds wgrad through a random Hadamard\n"
          "transform and back. These are the defaults of the recipes MXFP8BlockScaling,\n"
          "Float8BlockScaling and NVFP4BlockScaling, but for the rounding by chance of NVFP4's\n"
          "gradients: here it is to the nearest. They take the shapes that those recipes take:\n"
          "features divisible by 16, for MXFP8 by 32, and any number of tokens.",
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
                      .doc = "FP8E4M3, FP8E5M2, MXFP8E4M3, MXFP8E5M2, FP8BLOCKE4M3, FP8BLOCKE5M2 "
                             "or NVFP4",
                      .validate = validate_format}},
      .parse = parse_options,
      .recorded = config::nothing_recorded,
  };
}

}  // namespace telens::features
