// A matrix and its quantized copies in every block format.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "core/ops/statistics.h"

namespace telens::testing {

struct NamedCast {
  std::string name;
  at::Tensor x;  // in the orientation of the codes
  ops::BlockCast cast;
};

// Both orientations of x under every block format.
inline std::vector<NamedCast> get_casts(const at::Tensor& x) {
  std::vector<NamedCast> casts;
  const auto add = [&](const std::string& name, const ops::BlockCodesPair& pair, FormatId format,
                       ScalingMode mode) {
    casts.push_back({name + ", rowwise", x, {pair.rowwise, format, mode}});
    casts.push_back({name + ", columnwise", x.t(), {pair.columnwise, format, mode}});
  };
  for (const FormatId format : {FormatId::e4m3, FormatId::e5m2}) {
    for (const ScaleRounding rounding : {ScaleRounding::up, ScaleRounding::floor}) {
      add("MXFP8", ops::quantize_mxfp8(x, format, {.scale_rounding = rounding}, {}), format,
          ScalingMode::mxfp8);
    }
    for (const bool power_of_2 : {true, false}) {
      add("1x128", ops::quantize_fp8_blocks(x, format, {.power_of_2_scales = power_of_2}, {}),
          format, ScalingMode::block_1d);
    }
    add("128x128", ops::quantize_fp8_blocks(x, format, {.two_dimensional = true}, {}), format,
        ScalingMode::block_2d);
  }
  add("NVFP4", ops::quantize_nvfp4(x, {}, {}), FormatId::e2m1, ScalingMode::nvfp4);
  add("NVFP4 by rows", ops::quantize_nvfp4(x, {.row_scaled = true}, {}), FormatId::e2m1,
      ScalingMode::nvfp4);
  add("NVFP4 squares", ops::quantize_nvfp4(x, {.two_dimensional = true}, {}), FormatId::e2m1,
      ScalingMode::nvfp4);
  return casts;
}

}  // namespace telens::testing
