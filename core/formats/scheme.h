// The scaling schemes of quantized tensors and the recipes that statistics and features name, one
// row each. A new scheme adds a mode, its row here, its quantizer (core/quantization) and its
// kernels. No LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/formats/format_id.h"

namespace telens {

// The layout of a quantized tensor's scales. The run file and operator schemas store the numbers:
// append only.
enum class ScalingMode : std::uint8_t {
  tensor,      // one FP32 scale_inv for the whole tensor (delayed and current scaling)
  mxfp8,       // E8M0 scale per 32 elements along the row (columnwise: along the column)
  block_1d,    // FP32 scale per 1x128 block
  block_2d,    // FP32 scale per 128x128 block
  nvfp4,       // E4M3 scale per 16 elements and one FP32 tensor scale
  mxfp6_e3m2,  // E8M0 scale per 32 elements, as mxfp8
  mxfp6_e2m3,
};
inline constexpr std::array kAllScalingModes{
    ScalingMode::tensor, ScalingMode::mxfp8,      ScalingMode::block_1d,  ScalingMode::block_2d,
    ScalingMode::nvfp4,  ScalingMode::mxfp6_e3m2, ScalingMode::mxfp6_e2m3};

// The rows of a block of the random Hadamard transform.
inline constexpr std::int64_t kHadamardSize = 16;

// The recipes whose casts statistics and features can name, in the order of help texts.
enum class RecipeId : std::uint8_t {
  fp8_delayed_scaling,
  fp8_current_scaling,
  mxfp8,
  fp8_block_scaling,
  nvfp4,
  mxfp6_e3m2,
  mxfp6_e2m3,
};
inline constexpr std::array kAllRecipes{RecipeId::fp8_delayed_scaling,
                                        RecipeId::fp8_current_scaling,
                                        RecipeId::mxfp8,
                                        RecipeId::fp8_block_scaling,
                                        RecipeId::nvfp4,
                                        RecipeId::mxfp6_e3m2,
                                        RecipeId::mxfp6_e2m3};

struct ScalingScheme {
  ScalingMode mode;
  const char* name;  // in messages and dumps
  const char* id;    // in Python's ScalingMode and in pickled tensors
  // The element format; nullopt if a tensor has one of the FP8 formats, E4M3 or E5M2.
  std::optional<FormatId> element = std::nullopt;
  // Bits in memory per code: 8, or 4 for two codes per byte, the even column in the lower four
  // bits. Codes of six bits have eight bits in memory; the upper two are 0.
  int stored_bits = 8;
  // The rows, and the elements along a row, that share a scale; length 0 for one scale per tensor.
  // Blocks start at the row's start; the last one may be shorter.
  std::int64_t block_height = 1;
  std::int64_t block_length = 0;
  FormatId scale_format = FormatId::fp32;  // of scale_inv; E8M0 and E4M3 are stored as uint8
  // The multiples that GEMMs require: of rows and layer features, and along the summed dimension.
  std::int64_t row_multiple = 16;
  std::int64_t sum_multiple = 16;
  std::optional<RecipeId> recipe = std::nullopt;  // the recipe with such blocks
  bool has_cuda_kernels = true;

  constexpr bool has_128_blocks() const { return block_length == 128; }
  // True if block scales are multiplied by one FP32 scale of the tensor.
  constexpr bool has_tensor_scale() const { return scale_format == FormatId::e4m3; }
  constexpr std::int64_t codes_per_byte() const { return 8 / stored_bits; }
  constexpr bool is_packed() const { return stored_bits < 8; }
};

// The scheme of OCP MX: 32 elements share an E8M0 scale.
constexpr ScalingScheme make_mx_scheme(ScalingScheme row) {
  row.block_length = 32;
  row.scale_format = FormatId::e8m0;
  row.row_multiple = 32;
  row.sum_multiple = 32;
  return row;
}

// In the order of ScalingMode.
inline constexpr std::array kSchemes{
    ScalingScheme{.mode = ScalingMode::tensor, .name = "tensor", .id = "tensor"},
    make_mx_scheme(
        {.mode = ScalingMode::mxfp8, .name = "MXFP8", .id = "mxfp8", .recipe = RecipeId::mxfp8}),
    ScalingScheme{.mode = ScalingMode::block_1d,
                  .name = "1x128 block",
                  .id = "block_1d",
                  .block_length = 128,
                  .sum_multiple = 128,
                  .recipe = RecipeId::fp8_block_scaling},
    ScalingScheme{.mode = ScalingMode::block_2d,
                  .name = "128x128 block",
                  .id = "block_2d",
                  .block_height = 128,
                  .block_length = 128,
                  .sum_multiple = 128,
                  .recipe = RecipeId::fp8_block_scaling},
    ScalingScheme{.mode = ScalingMode::nvfp4,
                  .name = "NVFP4",
                  .id = "nvfp4",
                  .element = FormatId::e2m1,
                  .stored_bits = 4,
                  .block_length = 16,
                  .scale_format = FormatId::e4m3,
                  .sum_multiple = 32,
                  .recipe = RecipeId::nvfp4},
    make_mx_scheme({.mode = ScalingMode::mxfp6_e3m2,
                    .name = "MXFP6E3M2",
                    .id = "mxfp6_e3m2",
                    .element = FormatId::e3m2,
                    .recipe = RecipeId::mxfp6_e3m2,
                    .has_cuda_kernels = false}),
    make_mx_scheme({.mode = ScalingMode::mxfp6_e2m3,
                    .name = "MXFP6E2M3",
                    .id = "mxfp6_e2m3",
                    .element = FormatId::e2m3,
                    .recipe = RecipeId::mxfp6_e2m3,
                    .has_cuda_kernels = false})};

// Returns the row of a mode. Device code may call it only in constant expressions.
constexpr const ScalingScheme& scheme(ScalingMode mode) {
  return kSchemes[static_cast<std::size_t>(mode)];
}

static_assert([] {
  for (std::size_t i = 0; i < kSchemes.size(); ++i) {
    const ScalingScheme& row = kSchemes[i];
    if (row.mode != static_cast<ScalingMode>(i) || kAllScalingModes[i] != row.mode) return false;
    if (format_row(row.element.value_or(FormatId::e4m3)).bits > row.stored_bits) return false;
  }
  return kSchemes.size() == kAllScalingModes.size();
}());

constexpr bool has_128_blocks(ScalingMode mode) { return scheme(mode).has_128_blocks(); }
constexpr std::string_view get_name(ScalingMode mode) { return scheme(mode).name; }
constexpr std::int64_t block_length(ScalingMode mode) { return scheme(mode).block_length; }
constexpr std::int64_t block_height(ScalingMode mode) { return scheme(mode).block_height; }

// The smallest block length over all schemes.
constexpr std::int64_t smallest_block_length() {
  std::int64_t smallest = 0;
  for (const ScalingScheme& row : kSchemes) {
    const std::int64_t length = row.block_length;
    if (length > 0 && (smallest == 0 || length < smallest)) smallest = length;
  }
  return smallest;
}

struct RecipeRow {
  RecipeId id;
  const char* name;  // prefix of statistic names, followed by "_"
  // Prefix of format names, followed by the FP8 format; the whole name if the recipe has one
  // format.
  const char* format;
};

// In the order of RecipeId.
inline constexpr std::array kRecipeRows{
    RecipeRow{RecipeId::fp8_delayed_scaling, "fp8_delayed_scaling", "FP8"},
    RecipeRow{RecipeId::fp8_current_scaling, "fp8_current_scaling", "FP8"},
    RecipeRow{RecipeId::mxfp8, "mxfp8", "MXFP8"},
    RecipeRow{RecipeId::fp8_block_scaling, "fp8_block_scaling", "FP8BLOCK"},
    RecipeRow{RecipeId::nvfp4, "nvfp4", "NVFP4"},
    RecipeRow{RecipeId::mxfp6_e3m2, "mxfp6_e3m2", "MXFP6E3M2"},
    RecipeRow{RecipeId::mxfp6_e2m3, "mxfp6_e2m3", "MXFP6E2M3"}};

constexpr const RecipeRow& recipe_row(RecipeId recipe) {
  return kRecipeRows[static_cast<std::size_t>(recipe)];
}

static_assert([] {
  for (std::size_t i = 0; i < kRecipeRows.size(); ++i) {
    const RecipeId id = kRecipeRows[i].id;
    if (id != static_cast<RecipeId>(i) || kAllRecipes[i] != id) return false;
  }
  return kRecipeRows.size() == kAllRecipes.size();
}());

constexpr std::string_view get_name(RecipeId recipe) { return recipe_row(recipe).name; }

// Returns the first scheme of a recipe's blocks; nullptr if tensors have one scale.
constexpr const ScalingScheme* block_scheme(RecipeId recipe) {
  for (const ScalingScheme& row : kSchemes) {
    if (row.recipe == recipe) return &row;
  }
  return nullptr;
}

// True for block scales: only then do rowwise and columnwise copies differ.
constexpr bool is_block_recipe(RecipeId recipe) { return block_scheme(recipe) != nullptr; }

// Returns the recipe's only element format; nullopt if its elements are E4M3 or E5M2.
constexpr std::optional<FormatId> only_element(RecipeId recipe) {
  return is_block_recipe(recipe) ? block_scheme(recipe)->element : std::nullopt;
}

}  // namespace telens
