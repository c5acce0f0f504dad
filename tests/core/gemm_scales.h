// GEMM operands whose scales are far from 1, but whose product is not. The tests of every backend
// use them.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/ops/block_quantize.h"
#include "core/ops/gemm.h"
#include "core/ops/quantize.h"

namespace telens::testing {

struct ScaledOperand {
  at::Tensor codes;
  at::Tensor scale_inv;
  at::Tensor tensor_scale;
  FormatId format;
  ScalingMode mode;
  double scale;  // the scale of all its blocks

  ops::GemmOperand view() const { return {codes, scale_inv, tensor_scale, format, mode}; }
  // Without the scale; exact.
  at::Tensor unscaled() const {
    if (mode == ScalingMode::nvfp4) {
      return ops::dequantize_blocks({codes, scale_inv, {}}, format, mode, at::kFloat)
          .to(at::kDouble);
    }
    return ops::decode_fp8(codes, format, at::kFloat).to(at::kDouble);
  }
};

// Random codes [rows, k] with one scale for all blocks; for MXFP8 it is a power of two.
inline ScaledOperand operand_under(double scale, ScalingMode mode, FormatId format,
                                   std::int64_t rows, std::int64_t k) {
  const at::Tensor x = at::randn({rows, k}) * 30;
  ScaledOperand operand{{}, {}, {}, format, mode, scale};
  if (mode == ScalingMode::nvfp4) {
    const auto quantized = ops::quantize_nvfp4(x, {}, {true, false}).rowwise;
    operand.codes = quantized.codes;
    operand.scale_inv = quantized.scale_inv;
    operand.tensor_scale = at::full({1}, scale, at::kFloat);
    operand.format = FormatId::e2m1;
    operand.scale = operand.tensor_scale.item<double>();
    return operand;
  }
  operand.codes = ops::quantize_fp8(x, at::ones({1}), {}, format);
  if (mode == ScalingMode::tensor) {
    operand.scale_inv = at::full({1}, scale, at::kFloat);
  } else {
    const auto quotient = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    const std::vector<std::int64_t> sizes{quotient(rows, block_height(mode)),
                                          quotient(k, block_length(mode))};
    operand.scale_inv = mode == ScalingMode::mxfp8
                            ? at::full(sizes, std::ilogb(scale) + E8M0::kBias, at::kByte)
                            : at::full(sizes, scale, at::kFloat);
  }
  if (mode != ScalingMode::mxfp8) operand.scale = operand.scale_inv.flatten()[0].item<double>();
  return operand;
}

struct ScalePair {
  double a, b;
};

// Products of scales from 2^-100 to 2^60. Partial products leave FP32's range in every possible
// way.
inline const std::vector<ScalePair> kScalePairs{
    {std::ldexp(1.0, 120), std::ldexp(1.0, -120)},  {std::ldexp(1.0, -120), std::ldexp(1.0, 120)},
    {std::ldexp(1.0, 127), std::ldexp(1.0, -126)},  {std::ldexp(1.0, -126), std::ldexp(1.0, 127)},
    {std::ldexp(1.0, 127), std::ldexp(1.0, -67)},   {std::ldexp(1.0, -110), std::ldexp(1.0, 10)},
    {std::ldexp(1.5, 119), std::ldexp(1.25, -118)}, {std::ldexp(1.25, -119), std::ldexp(1.5, 121)},
    {std::ldexp(1.7, 126), std::ldexp(1.3, -122)},  {std::ldexp(1.7, -126), std::ldexp(1.3, 126)},
    {std::ldexp(1.7, -117), std::ldexp(1.3, 20)},
};

// Compares the FP32 result of product(a, b) with FP64 for every pair of scales and every supported
// pair of modes.
template <typename Product>
void expect_products_in_double(const Product& product) {
  struct Case {
    std::string name;
    ScalingMode a, b;
    FormatId a_format;
  };
  const std::vector<Case> cases{
      {"tensor", ScalingMode::tensor, ScalingMode::tensor, FormatId::e5m2},
      {"MXFP8", ScalingMode::mxfp8, ScalingMode::mxfp8, FormatId::e4m3},
      {"MXFP8 of E5M2", ScalingMode::mxfp8, ScalingMode::mxfp8, FormatId::e5m2},
      {"1x128", ScalingMode::block_1d, ScalingMode::block_1d, FormatId::e5m2},
      {"1x128 by 128x128", ScalingMode::block_1d, ScalingMode::block_2d, FormatId::e4m3},
      {"128x128 by 1x128", ScalingMode::block_2d, ScalingMode::block_1d, FormatId::e4m3},
      {"NVFP4", ScalingMode::nvfp4, ScalingMode::nvfp4, FormatId::e2m1}};
  for (const Case& each : cases) {
    for (const ScalePair& scales : kScalePairs) {
      const bool powers = std::ldexp(1.0, std::ilogb(scales.a)) == scales.a;
      if (each.a == ScalingMode::mxfp8 && !powers) continue;
      const ScaledOperand a = operand_under(scales.a, each.a, each.a_format, 32, 256);
      const ScaledOperand b = operand_under(scales.b, each.b, FormatId::e4m3, 48, 256);
      const at::Tensor sums = a.unscaled().mm(b.unscaled().t());
      const at::Tensor magnitudes = a.unscaled().abs().mm(b.unscaled().abs().t());
      const double scale = a.scale * b.scale;
      const at::Tensor error = (product(a, b).to(at::kDouble) - sums * scale).abs();
      // 256 additions in FP32, and the rounding of scales and result.
      EXPECT_TRUE((error <= magnitudes * (scale * 260 * 0x1p-24)).all().template item<bool>())
          << each.name << " under " << scales.a << " and " << scales.b << ": off by "
          << (error / scale).max().template item<double>() << " of "
          << (sums.abs()).max().template item<double>();
    }
  }
}

}  // namespace telens::testing
