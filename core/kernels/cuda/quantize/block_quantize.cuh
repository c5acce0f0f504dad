// Device code. FP8 with block scales: MXFP8, and blocks of 128 elements.
#pragma once

#include "core/formats/scheme.h"
#include "core/kernels/cuda/quantize/block_lines.cuh"
#include "core/kernels/cuda/quantize/block_squares.cuh"
#include "core/kernels/cuda/quantize/quantize.cuh"
#include "core/ops/scale_formula.h"

namespace telens::cuda {

template <typename Output>
struct Mxfp8Scaling {
  using ScaleCode = std::uint8_t;
  static constexpr int kBlock = block_length(ScalingMode::mxfp8);
  static constexpr NanInMaximum kNan = NanInMaximum::left_out;
  static constexpr bool kTwoCodesAByte = false;
  static constexpr bool kOneScaleASquare = false;
  static constexpr bool kScalesLines = false;

  ScaleRounding rounding;

  TELENS_DEVICE BlockScale<ScaleCode> get_scale(float amax) const {
    const std::uint8_t code = e8m0_scale<Output>(amax, rounding);
    return {code, e8m0_factor(code)};
  }
  template <typename Input, bool whole, typename FactorOf>
  TELENS_DEVICE EightWords<std::uint8_t> encode(const EightWords<typename Input::Bits>& x,
                                                std::int64_t, const FactorOf& get_factor) const {
    return encode_words<Input, Output>(x, 0, get_factor);
  }
};

template <typename Output>
struct Fp8BlockScaling {
  using ScaleCode = float;
  static constexpr int kBlock = block_length(ScalingMode::block_1d);
  static constexpr NanInMaximum kNan = NanInMaximum::left_out;
  static constexpr bool kTwoCodesAByte = false;
  static constexpr bool kOneScaleASquare = true;
  static constexpr bool kScalesLines = false;

  bool power_of_2_scales;
  float amax_epsilon;
  float largest_scale;  // the largest value of x's format

  TELENS_DEVICE BlockScale<ScaleCode> get_scale(float amax) const {
    const float scale =
        current_scale(amax, Output::kMax, amax_epsilon, power_of_2_scales, largest_scale);
    return {1.0F / scale, scale};
  }
  template <typename Input, bool whole, typename FactorOf>
  TELENS_DEVICE EightWords<std::uint8_t> encode(const EightWords<typename Input::Bits>& x,
                                                std::int64_t, const FactorOf& get_factor) const {
    return encode_words<Input, Output>(x, 0, get_factor);
  }
};

// Both orientations share the codes of squares, which are written to outputs.rowwise.codes for any
// requested orientation. The scales of 128x128 blocks are shared too.
struct Mxfp8Arguments {
  BlockMatrix matrix;
  BlockOutputs<std::uint8_t> outputs;
  ScaleRounding rounding;
  bool squares;
};

struct Fp8BlockArguments {
  BlockMatrix matrix;
  BlockOutputs<float> outputs;
  bool power_of_2_scales;
  float amax_epsilon;
  bool squares;
};

}  // namespace telens::cuda
