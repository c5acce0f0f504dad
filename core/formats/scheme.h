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
  tensor,    // one FP32 scale_inv for the whole tensor (delayed and current scaling)
  mxfp8,     // E8M0 scale per 32 elements along the row (columnwise: along the column)
  block_1d,  // FP32 scale per 1x128 block
  block_2d,  // FP32 scale per 128x128 block
  nvfp4,     // E4M3 scale per 16 elements and one FP32 tensor scale
};
inline constexpr std::array kAllScalingModes{ScalingMode::tensor, ScalingMode::mxfp8,
                                             ScalingMode::block_1d, ScalingMode::block_2d,
                                             ScalingMode::nvfp4};

// The rows of a block of the random Hadamard transform.
inline constexpr std::int64_t kHadamardSize = 16;

// The recipes whose casts statistics and features can name, in the order of help texts.
enum class RecipeId : std::uint8_t {
  fp8_delayed_scaling,
  fp8_current_scaling,
  mxfp8,
  fp8_block_scaling,
  nvfp4,
};
inline constexpr std::array kAllRecipes{RecipeId::fp8_delayed_scaling,
                                        RecipeId::fp8_current_scaling, RecipeId::mxfp8,
                                        RecipeId::fp8_block_scaling, RecipeId::nvfp4};

// Device code creates rows too: their members must not call the standard library. nvcc treats code
// after std::string_view's strlen as unreachable.
struct ScalingScheme {
  const char* name;  // in messages and dumps
  const char* id;    // in Python's ScalingMode and in pickled tensors
  // The rows, and the elements along a row, that share a scale; length 0 for one scale per tensor.
  // Blocks start at the row's start; the last one may be shorter.
  std::int64_t block_height;
  std::int64_t block_length;
  FormatId scale_format;  // format of scale_inv; E8M0 and E4M3 are stored as uint8
  // True if elements are E2M1: two codes per byte, the even column in the lower four bits, and
  // block scales under one FP32 tensor scale. False if elements are E4M3 or E5M2, one per byte.
  bool packed_fp4;
  // The multiples that GEMMs require: of rows and layer features, and along the summed dimension.
  std::int64_t row_multiple;
  std::int64_t sum_multiple;
  std::optional<RecipeId> recipe;  // the recipe with such blocks

  constexpr bool has_128_blocks() const { return block_length == 128; }
  constexpr std::int64_t codes_per_byte() const { return packed_fp4 ? 2 : 1; }
};

// Returns the row of a mode. A switch: device code cannot index a host table.
constexpr ScalingScheme scheme(ScalingMode mode) {
  switch (mode) {
    case ScalingMode::tensor:
      return {.name = "tensor",
              .id = "tensor",
              .block_height = 1,
              .block_length = 0,
              .scale_format = FormatId::fp32,
              .packed_fp4 = false,
              .row_multiple = 16,
              .sum_multiple = 16,
              .recipe = std::nullopt};
    case ScalingMode::mxfp8:
      return {.name = "MXFP8",
              .id = "mxfp8",
              .block_height = 1,
              .block_length = 32,
              .scale_format = FormatId::e8m0,
              .packed_fp4 = false,
              .row_multiple = 32,
              .sum_multiple = 32,
              .recipe = RecipeId::mxfp8};
    case ScalingMode::block_1d:
      return {.name = "1x128 block",
              .id = "block_1d",
              .block_height = 1,
              .block_length = 128,
              .scale_format = FormatId::fp32,
              .packed_fp4 = false,
              .row_multiple = 16,
              .sum_multiple = 128,
              .recipe = RecipeId::fp8_block_scaling};
    case ScalingMode::block_2d:
      return {.name = "128x128 block",
              .id = "block_2d",
              .block_height = 128,
              .block_length = 128,
              .scale_format = FormatId::fp32,
              .packed_fp4 = false,
              .row_multiple = 16,
              .sum_multiple = 128,
              .recipe = RecipeId::fp8_block_scaling};
    case ScalingMode::nvfp4:
      break;
  }
  return {.name = "NVFP4",
          .id = "nvfp4",
          .block_height = 1,
          .block_length = 16,
          .scale_format = FormatId::e4m3,
          .packed_fp4 = true,
          .row_multiple = 16,
          .sum_multiple = 32,
          .recipe = RecipeId::nvfp4};
}

constexpr bool is_packed_fp4(ScalingMode mode) { return scheme(mode).packed_fp4; }
constexpr bool has_128_blocks(ScalingMode mode) { return scheme(mode).has_128_blocks(); }
constexpr std::string_view get_name(ScalingMode mode) { return scheme(mode).name; }
constexpr std::int64_t block_length(ScalingMode mode) { return scheme(mode).block_length; }
constexpr std::int64_t block_height(ScalingMode mode) { return scheme(mode).block_height; }

// The smallest block length over all schemes.
constexpr std::int64_t smallest_block_length() {
  std::int64_t smallest = 0;
  for (const ScalingMode mode : kAllScalingModes) {
    const std::int64_t length = block_length(mode);
    if (length > 0 && (smallest == 0 || length < smallest)) smallest = length;
  }
  return smallest;
}

struct RecipeRow {
  const char* name;    // prefix of statistic names, followed by "_"
  const char* format;  // prefix of format names, followed by the FP8 element format
};

constexpr RecipeRow recipe_row(RecipeId recipe) {
  switch (recipe) {
    case RecipeId::fp8_delayed_scaling:
      return {.name = "fp8_delayed_scaling", .format = "FP8"};
    case RecipeId::fp8_current_scaling:
      return {.name = "fp8_current_scaling", .format = "FP8"};
    case RecipeId::mxfp8:
      return {.name = "mxfp8", .format = "MXFP8"};
    case RecipeId::fp8_block_scaling:
      return {.name = "fp8_block_scaling", .format = "FP8BLOCK"};
    case RecipeId::nvfp4:
      break;
  }
  return {.name = "nvfp4", .format = "NVFP4"};
}

constexpr std::string_view get_name(RecipeId recipe) { return recipe_row(recipe).name; }

// Returns the first scheme of a recipe's blocks; nullopt if tensors have one scale.
constexpr std::optional<ScalingScheme> block_scheme(RecipeId recipe) {
  for (const ScalingMode mode : kAllScalingModes) {
    if (scheme(mode).recipe == recipe) return scheme(mode);
  }
  return std::nullopt;
}

// True for block scales: only then do rowwise and columnwise copies differ.
constexpr bool is_block_recipe(RecipeId recipe) { return block_scheme(recipe).has_value(); }

// True if elements are E2M1; else they are E4M3 or E5M2.
constexpr bool is_packed_fp4(RecipeId recipe) {
  return is_block_recipe(recipe) && block_scheme(recipe)->packed_fp4;
}

}  // namespace telens
