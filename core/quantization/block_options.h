// How a block quantizer makes scales and codes, beyond its scaling mode.
#pragma once

#include <cstdint>
#include <optional>

#include "core/formats/convert.h"
#include "core/ops/four_over_six_formula.h"

namespace telens {

// Part of a quantized tensor, so that it can be quantized again as it was.
struct BlockOptions {
  // Blocks as high as long (128-blocks have a scaling mode for it).
  bool two_dimensional = false;
  ScaleRounding scale_rounding = ScaleRounding::up;  // E8M0 scales
  bool power_of_2_scales = true;                     // 128-blocks
  float amax_epsilon = 0.0F;                         // 128-blocks: smaller amaxes count as this one
  // Packed FP4: signs of the random Hadamard transform of the columnwise orientation, if there is
  // one.
  std::optional<std::uint16_t> hadamard_signs = std::nullopt;
  bool stochastic_rounding = false;  // packed FP4
  // Packed FP4, without either of those: blocks are scaled to 4 or to 6, by this error.
  std::optional<FourOverSix> four_over_six = std::nullopt;
  // Packed FP4, without squares, transform and chance: each row of codes has a scale of its own in
  // the tensor's place.
  bool row_scaled = false;

  bool operator==(const BlockOptions&) const = default;
};

}  // namespace telens
