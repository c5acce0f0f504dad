#include "core/quantization/recipe.h"

#include <fmt/ranges.h>

#include <array>

#include "core/base/error.h"
#include "core/quantization/block_scaling.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"

namespace telens {

std::string_view get_name(Fp8Format format) {
  switch (format) {
    case Fp8Format::e4m3:
      return "E4M3";
    case Fp8Format::e5m2:
      return "E5M2";
    case Fp8Format::hybrid:
      break;
  }
  return "HYBRID";
}

std::string_view get_name(TensorRole role) {
  switch (role) {
    case TensorRole::input:
      return "input";
    case TensorRole::weight:
      return "weight";
    case TensorRole::output:
      return "output";
    case TensorRole::grad_output:
      return "grad_output";
    case TensorRole::grad_input:
      break;
  }
  return "grad_input";
}

FormatId Recipe::get_format(TensorRole role) const {
  switch (fp8_format) {
    case Fp8Format::e4m3:
      return FormatId::e4m3;
    case Fp8Format::e5m2:
      return FormatId::e5m2;
    case Fp8Format::hybrid:
      break;
  }
  return is_backward(role) ? FormatId::e5m2 : FormatId::e4m3;
}

const MMParams& Recipe::get_parameters(Gemm gemm) const {
  switch (gemm) {
    case Gemm::fprop:
      return fp8_gemm_fprop;
    case Gemm::dgrad:
      return fp8_gemm_dgrad;
    case Gemm::wgrad:
      break;
  }
  return fp8_gemm_wgrad;
}

bool Recipe::OverrideLinearPrecision::of(Gemm gemm) const {
  switch (gemm) {
    case Gemm::fprop:
      return fprop;
    case Gemm::dgrad:
      return dgrad;
    case Gemm::wgrad:
      break;
  }
  return wgrad;
}

namespace {

struct RecipeMaker {
  RecipeId id;
  std::shared_ptr<Recipe> (*make)();
};

template <typename RecipeType>
std::shared_ptr<Recipe> make() {
  return std::make_shared<RecipeType>();
}

template <FormatId element>
std::shared_ptr<Recipe> make_mxfp6() {
  return std::make_shared<MXFP6BlockScaling>(element);
}

constexpr std::array kRecipes{
    RecipeMaker{RecipeId::fp8_delayed_scaling, make<DelayedScaling>},
    RecipeMaker{RecipeId::fp8_current_scaling, make<Float8CurrentScaling>},
    RecipeMaker{RecipeId::mxfp8, make<MXFP8BlockScaling>},
    RecipeMaker{RecipeId::fp8_block_scaling, make<Float8BlockScaling>},
    RecipeMaker{RecipeId::nvfp4, make<NVFP4BlockScaling>},
    RecipeMaker{RecipeId::mxfp6_e3m2, make_mxfp6<FormatId::e3m2>},
    RecipeMaker{RecipeId::mxfp6_e2m3, make_mxfp6<FormatId::e2m3>}};

struct QuantizerRow {
  ScalingMode mode;
  std::shared_ptr<Quantizer> (*make)(const QuantizedTensor& like, Usage usage);
};

constexpr std::array kQuantizers{
    QuantizerRow{ScalingMode::tensor,
                 [](const QuantizedTensor& like, Usage usage) -> std::shared_ptr<Quantizer> {
                   return std::make_shared<CurrentScalingQuantizer>(like.format,
                                                                    CurrentScalingOptions(), usage);
                 }},
    QuantizerRow{ScalingMode::mxfp8,
                 [](const QuantizedTensor& like, Usage usage) -> std::shared_ptr<Quantizer> {
                   return std::make_shared<MXFP8Quantizer>(like.format, like.blocks, usage);
                 }},
    QuantizerRow{ScalingMode::block_1d,
                 [](const QuantizedTensor& like, Usage usage) -> std::shared_ptr<Quantizer> {
                   return std::make_shared<Float8BlockQuantizer>(like.format, 1, like.blocks,
                                                                 usage);
                 }},
    QuantizerRow{ScalingMode::block_2d,
                 [](const QuantizedTensor& like, Usage usage) -> std::shared_ptr<Quantizer> {
                   return std::make_shared<Float8BlockQuantizer>(like.format, 2, like.blocks,
                                                                 usage);
                 }},
    QuantizerRow{ScalingMode::nvfp4,
                 [](const QuantizedTensor& like, Usage usage) -> std::shared_ptr<Quantizer> {
                   return std::make_shared<NVFP4Quantizer>(like.blocks, usage);
                 }},
    QuantizerRow{ScalingMode::mxfp6_e3m2,
                 [](const QuantizedTensor& like, Usage usage) -> std::shared_ptr<Quantizer> {
                   return std::make_shared<MXFP6Quantizer>(like.format, like.blocks, usage);
                 }},
    QuantizerRow{ScalingMode::mxfp6_e2m3,
                 [](const QuantizedTensor& like, Usage usage) -> std::shared_ptr<Quantizer> {
                   return std::make_shared<MXFP6Quantizer>(like.format, like.blocks, usage);
                 }},
};
static_assert(kQuantizers.size() == kAllScalingModes.size());

}  // namespace

std::shared_ptr<Recipe> default_recipe(RecipeId id) {
  for (const RecipeMaker& row : kRecipes) {
    if (row.id == id) return row.make();
  }
  raise<InternalError>("recipe {} is missing in {}", static_cast<int>(id), __FILE__);
}

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const RecipeMaker& row : kRecipes) names.emplace_back(row.make()->name());
  return names;
}

std::shared_ptr<Recipe> default_recipe(std::string_view name) {
  for (const RecipeMaker& row : kRecipes) {
    if (auto recipe = row.make(); recipe->name() == name) return recipe;
  }
  raise<UsageError>("unknown recipe '{}'; expected one of {}", name,
                    fmt::join(recipe_names(), ", "));
}

std::shared_ptr<Quantizer> quantizer_like(const QuantizedTensor& tensor) {
  const Usage usage{tensor.rowwise.defined(), tensor.columnwise.defined()};
  for (const QuantizerRow& row : kQuantizers) {
    if (row.mode == tensor.mode) return row.make(tensor, usage);
  }
  raise<InternalError>("scaling mode {} is missing in {}", static_cast<int>(tensor.mode), __FILE__);
}

}  // namespace telens
