// How the scales of a quantized tensor are laid out.
#pragma once

#include <cstdint>
#include <string_view>

namespace telens {

// The order is part of the run file and of operator schemas: append only.
enum class ScalingMode : std::uint8_t {
  tensor,    // one FP32 scale_inv for the whole tensor (delayed and current scaling)
  mxfp8,     // E8M0 scale per 32 elements along the row (columnwise: along the column)
  block_1d,  // FP32 scale per 1x128 block
  block_2d,  // FP32 scale per 128x128 block
  nvfp4,     // E4M3 scale per 16 elements under one FP32 scale of the tensor
};

// Elements along a row that share a scale; 0 for `tensor`. Blocks begin at the row's start, the
// last one of a row may be shorter.
constexpr std::int64_t block_length(ScalingMode mode) {
  switch (mode) {
    case ScalingMode::tensor:
      return 0;
    case ScalingMode::mxfp8:
      return 32;
    case ScalingMode::block_1d:
    case ScalingMode::block_2d:
      return 128;
    case ScalingMode::nvfp4:
      break;
  }
  return 16;
}

// Rows that share one row of scales.
constexpr std::int64_t block_height(ScalingMode mode) {
  return mode == ScalingMode::block_2d ? 128 : 1;
}

constexpr std::string_view name_of(ScalingMode mode) {
  switch (mode) {
    case ScalingMode::tensor:
      return "tensor";
    case ScalingMode::mxfp8:
      return "MXFP8";
    case ScalingMode::block_1d:
      return "1x128 block";
    case ScalingMode::block_2d:
      return "128x128 block";
    case ScalingMode::nvfp4:
      break;
  }
  return "NVFP4";
}

}  // namespace telens
