// Device code. FP8 with block scales, MXFP8 and blocks of 128 elements, and dequantization of every
// block format.
#pragma once

#include "core/formats/scheme.h"
#include "core/kernels/cuda/blocks/block_decode.cuh"
#include "core/kernels/cuda/quantize/block_scaling.cuh"
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

// ---- Block-scaled codes -> BF16, FP16 or FP32.

struct BlockDequantizeArguments {
  CodedMatrix codes;
  void* values;  // [rows, columns]
};

namespace detail {

// Calls visit(i, get_factor) for a thread's rows of bytes in a matrix.
template <typename Codes, typename Scales, typename Visit>
TELENS_DEVICE void with_factors(const Scales& scales, std::int64_t row0, std::int64_t column,
                                std::int64_t byte_rows, const Visit& visit) {
  if (scales.one_for_eight()) {
    float factors[kDecodeRows];  // all are loaded before the first is used
    TELENS_UNROLL
    for (int i = 0; i < kDecodeRows; ++i) {
      if (row0 + i < byte_rows) factors[i] = scales.at((row0 + i) * Codes::kLinesOfByte, column);
    }
    TELENS_UNROLL
    for (int i = 0; i < kDecodeRows; ++i) {
      if (row0 + i < byte_rows) visit(i, [&](int) { return factors[i]; });
    }
    return;
  }
  // Blocks run down the columns with at least sixteen rows, so one block contains all rows of a
  // thread.
  if (row0 >= byte_rows) return;
  const Eight<float> factors = scales.of_eight(row0 * Codes::kLinesOfByte, column);
  TELENS_UNROLL
  for (int i = 0; i < kDecodeRows; ++i) {
    if (row0 + i < byte_rows) visit(i, [&](int c) { return factors.values[c]; });
  }
}

}  // namespace detail

// `whole`: columns are a multiple of 8; codes are aligned to packs of 8 bytes and values to packs
// of 16.
template <typename Input, typename ScaleFormat, typename Output, CodePairs pairs, bool whole,
          typename Thread>
TELENS_DEVICE void dequantize_blocks(const BlockDequantizeArguments& arguments,
                                     const Thread& thread) {
  using Bits = typename Output::Bits;
  using Codes = CodesOfThread<pairs>;
  const CodedMatrix& matrix = arguments.codes;
  const StoredScales<ScaleFormat> scales(matrix);
  const std::int64_t byte_rows = Codes::rows_of_bytes(matrix);
  for_each_tile<kDecodeTileRows>(
      thread, byte_rows, matrix.columns, [&](std::int64_t tile_row, std::int64_t tile_column) {
        const std::int64_t row0 = tile_row + get_row<kDecodeRows>(thread);
        const std::int64_t column = tile_column + get_column(thread);
        if (column >= matrix.columns) return;
        Codes codes;
        codes.template load<whole>(matrix, row0, column);
        const auto store_row = [&](int i, const auto& get_factor) {
          TELENS_UNROLL
          for (int line = 0; line < Codes::kLinesOfByte; ++line) {
            const std::int64_t row = (row0 + i) * Codes::kLinesOfByte + line;
            store_within<whole>(static_cast<Bits*>(arguments.values) + row * matrix.columns, column,
                                matrix.columns,
                                decode_eight<Input, Output>(codes.line(i, line), get_factor));
          }
        };
        detail::with_factors<Codes>(scales, row0, column, byte_rows, store_row);
      });
}

}  // namespace telens::cuda
