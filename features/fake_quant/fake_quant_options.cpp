#include "features/fake_quant/fake_quant_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "hooks/config/suggestions.h"

namespace telens::features {
namespace {

constexpr std::string_view kQuantFormat = "quant_format";

// The recipe that represents formats with one scale per tensor. Delayed scaling has the same
// formats.
constexpr RecipeId kOfTensor = RecipeId::fp8_current_scaling;

// Returns the formats that a recipe casts to: its only format, or each FP8 format.
std::vector<FormatId> get_elements(RecipeId recipe) {
  if (const auto element = only_element(recipe)) return {*element};
  return {FormatId::e4m3, FormatId::e5m2};
}

std::string format_name(RecipeId recipe, FormatId element) {
  const char* format = recipe_row(recipe).format;
  return only_element(recipe) ? format : fmt::format("{}{}", format, telens::get_name(element));
}

struct NamedFormat {
  std::string name;
  FakeQuantOptions options;
};

const std::vector<NamedFormat>& formats() {
  static const std::vector<NamedFormat> kFormats = [] {
    std::vector<NamedFormat> made;
    for (const RecipeId recipe : kAllRecipes) {
      if (!is_block_recipe(recipe) && recipe != kOfTensor) continue;
      const auto blocks = is_block_recipe(recipe) ? std::optional(recipe) : std::nullopt;
      for (const FormatId element : get_elements(recipe)) {
        made.push_back({format_name(recipe, element), {element, blocks}});
      }
    }
    return made;
  }();
  return kFormats;
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const NamedFormat& format : formats()) names.push_back(format.name);
  return names;
}

// "A, B or C"
std::string alternatives(std::vector<std::string> names) {
  const std::string last = names.back();
  names.pop_back();
  return fmt::format("{} or {}", fmt::join(names, ", "), last);
}

// Returns a line for each recipe with blocks: its formats, the length of a block, and the resulting
// requirement for features.
std::string blocks_of_formats() {
  std::string lines;
  for (const RecipeId recipe : kAllRecipes) {
    if (!is_block_recipe(recipe)) continue;
    std::vector<std::string> names;
    for (const FormatId element : get_elements(recipe)) {
      names.push_back(format_name(recipe, element));
    }
    lines +=
        fmt::format("  {}: {} elements; features are divisible by {}\n", fmt::join(names, ", "),
                    block_scheme(recipe)->block_length, block_scheme(recipe)->row_multiple);
  }
  return lines;
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
  return config::make_options(std::ranges::find(formats(), format, &NamedFormat::name)->options);
}

}  // namespace

std::string_view FakeQuantOptions::name() const {
  return std::ranges::find(formats(), *this, &NamedFormat::options)->name;
}

config::FeatureDescription fake_quant_description() {
  return {
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "FakeQuant",
      .summary = "quantizes and dequantizes; the GEMM runs in high precision",
      .doc =
          "Casts each selected tensor to the format and back, so that the GEMM receives values\n"
          "that the format can represent. The selected GEMMs run in high precision under any\n"
          "recipe. FP8E4M3 and FP8E5M2 use one scale from the tensor's own amax. The other\n"
          "formats use one scale per block. Blocks extend along the dimension that the GEMM sums\n"
          "over (for outputs: along rows):\n" +
          blocks_of_formats() +
          "These are the defaults of the formats' recipes (docs/formats.md): square blocks for\n"
          "weights and, if the recipe has it, a random Hadamard transform and its inverse for\n"
          "the operands of wgrad. Stochastic rounding is replaced by rounding to nearest. Any\n"
          "number of tokens is accepted.",
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
                      .doc = alternatives(format_names()),
                      .validate = validate_format}},
      .parse = parse_options,
      .recorded = config::nothing_recorded,
      .attached = config::kNeedsFp8Modules,
  };
}

}  // namespace telens::features
