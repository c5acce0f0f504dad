// How a tensor was quantized in blocks. No LibTorch.
#pragma once

#include <cstdint>
#include <optional>

#include "core/formats/convert.h"
#include "core/formats/scheme.h"
#include "core/ops/four_over_six_formula.h"

namespace telens {

// The options of a block quantizer beyond its scaling mode. Stored in the QuantizedTensor so that
// it can be quantized again in the same way.
struct BlockOptions {
  // Square blocks. 128-blocks use a separate scaling mode for this.
  bool two_dimensional = false;
  ScaleRounding scale_rounding = ScaleRounding::up;  // E8M0 scales
  bool power_of_2_scales = true;                     // 128-blocks
  float amax_epsilon = 0.0F;                         // 128-blocks: lower bound of amaxes
  // NVFP4: the signs of the random Hadamard transform of the columnwise orientation; nullopt if it
  // is not transformed.
  std::optional<std::uint16_t> hadamard_signs = std::nullopt;
  bool stochastic_rounding = false;  // NVFP4
  // NVFP4 without transform and stochastic rounding: scales each block to 4 or to 6, whichever has
  // the smaller error in this norm.
  std::optional<FourOverSix> four_over_six = std::nullopt;
  // NVFP4 without square blocks, transform and stochastic rounding: each row of codes has a tensor
  // scale.
  bool row_scaled = false;

  bool operator==(const BlockOptions&) const = default;
};

}  // namespace telens
