// Block quantization of a matrix on every thread, with one read for both orientations.
//
// A Scaling defines how blocks become scales and elements become codes:
//   using ScaleCode = ...;                           how a scale is stored
//   static constexpr std::int64_t kBlock             elements along a block
//   static constexpr NanInMaximum kNan
//   BlockScale<ScaleCode> get_scale(float amax) const, or get_scale(float amax, std::int64_t line)
//   void encode(Elements, const float* factors, std::uint8_t* codes) const      one code per byte
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/quantize/fp8_ranges.h"
#include "core/ops/block_quantize.h"
#include "core/ops/scale_formula.h"

namespace telens::kernels {

// A row-major matrix of BF16, FP16 or FP32 elements.
struct ElementMatrix {
  FormatId format;
  const void* data;
  std::int64_t rows;
  std::int64_t columns;

  const void* at(std::int64_t row, std::int64_t column) const {
    const std::int64_t width = format == FormatId::fp32 ? 4 : 2;
    return static_cast<const std::byte*>(data) + (row * columns + column) * width;
  }
};

// Consecutive elements in a row.
struct Elements {
  FormatId format;
  const void* data;
  std::size_t size;
  std::int64_t index;  // index of the first element in the whole matrix
};

// Destination of the codes and scales for an orientation; both pointers are null if it is not
// requested. Codes have the element order of the input.
template <typename Scaling>
struct BlockOutput {
  std::uint8_t* codes = nullptr;
  typename Scaling::ScaleCode* scales = nullptr;
};

template <typename Scaling>
struct BlockOutputs {
  BlockOutput<Scaling> rowwise;     // scales [rows, columns / block]
  BlockOutput<Scaling> columnwise;  // scales [rows / block, columns]
  BlockOutput<Scaling> square;      // scales [rows / block, columns / block]
};

using ops::rounded_up_quotient;

template <typename Scaling>
class BlockTiles {
 public:
  BlockTiles(const ElementMatrix& x, const Scaling& scaling, const BlockOutputs<Scaling>& outputs)
      : x_(x), scaling_(scaling), outputs_(outputs) {}

  void quantize() const {
    const std::int64_t across = rounded_up_quotient(x_.columns, kWidth);
    const std::int64_t tiles = rounded_up_quotient(x_.rows, kBlock) * across;
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / (kBlock * kWidth));
    at::parallel_for(0, tiles, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t tile = begin; tile < end; ++tile) {
        quantize_tile(tile / across * kBlock, tile % across * kWidth);
      }
    });
  }

 private:
  static constexpr std::int64_t kBlock = Scaling::kBlock;
  // Columns per tile. A tile of up to 128 rows stays in a core's second-level cache.
  static constexpr std::int64_t kWidth = 1024;
  static_assert(kWidth % kBlock == 0);
  using PerElement = std::array<float, kWidth>;

  struct Tile {
    std::int64_t row;
    std::int64_t rows;
    std::int64_t column;
    std::int64_t width;

    std::int64_t blocks() const { return rounded_up_quotient(width, kBlock); }
  };

  void quantize_tile(std::int64_t row, std::int64_t column) const {
    const Tile tile{row, std::min(kBlock, x_.rows - row), column,
                    std::min(kWidth, x_.columns - column)};
    if (outputs_.rowwise.codes != nullptr) quantize_along_rows(tile);
    if (outputs_.columnwise.codes != nullptr) quantize_along_columns(tile);
    if (outputs_.square.codes != nullptr) quantize_squares(tile);
  }

  void quantize_along_rows(const Tile& tile) const {
    const std::int64_t blocks_of_row = rounded_up_quotient(x_.columns, kBlock);
    std::array<float, kWidth / kBlock> maxima;
    PerElement factors;
    for (std::int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
      block_maxima(x_.format, x_.at(row, tile.column), static_cast<std::size_t>(tile.width), kBlock,
                   Scaling::kNan, maxima.data());
      spread(tile, maxima, row,
             outputs_.rowwise.scales + row * blocks_of_row + tile.column / kBlock, factors);
      encode_row(tile, row, factors, outputs_.rowwise.codes);
    }
  }

  void quantize_along_columns(const Tile& tile) const {
    PerElement maxima;
    maxima_of_columns(tile, maxima);
    auto* const scales = outputs_.columnwise.scales + tile.row / kBlock * x_.columns + tile.column;
    PerElement& factors = maxima;
    for (std::int64_t i = 0; i < tile.width; ++i) {
      const auto [stored, factor] = get_scale(maxima[i], tile.column + i);
      scales[i] = stored;
      factors[i] = factor;
    }
    encode_rows(tile, factors, outputs_.columnwise.codes);
  }

  void quantize_squares(const Tile& tile) const {
    PerElement of_columns;
    maxima_of_columns(tile, of_columns);
    std::array<float, kWidth / kBlock> maxima;
    block_maxima(FormatId::fp32, of_columns.data(), static_cast<std::size_t>(tile.width), kBlock,
                 Scaling::kNan, maxima.data());
    const std::int64_t blocks_of_row = rounded_up_quotient(x_.columns, kBlock);
    PerElement& factors = of_columns;
    spread(tile, maxima, /*line=*/0,
           outputs_.square.scales + tile.row / kBlock * blocks_of_row + tile.column / kBlock,
           factors);
    encode_rows(tile, factors, outputs_.square.codes);
  }

  void maxima_of_columns(const Tile& tile, PerElement& maxima) const {
    std::fill_n(maxima.begin(), tile.width, 0.0F);
    for (std::int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
      update_column_maxima(x_.format, x_.at(row, tile.column), static_cast<std::size_t>(tile.width),
                           Scaling::kNan, maxima.data());
    }
  }

  // The scale of a block of `line`: a row, or a column if blocks run down the columns.
  auto get_scale(float amax, std::int64_t line) const {
    if constexpr (requires { scaling_.get_scale(amax, line); }) {
      return scaling_.get_scale(amax, line);
    } else {
      return scaling_.get_scale(amax);
    }
  }

  // Computes the scales of a row of blocks and expands their factors to one per element.
  void spread(const Tile& tile, const std::array<float, kWidth / kBlock>& maxima, std::int64_t line,
              typename Scaling::ScaleCode* scales, PerElement& factors) const {
    for (std::int64_t block = 0; block < tile.blocks(); ++block) {
      const auto [stored, factor] = get_scale(maxima[block], line);
      scales[block] = stored;
      std::fill_n(factors.begin() + block * kBlock, kBlock, factor);
    }
  }

  void encode_rows(const Tile& tile, const PerElement& factors, std::uint8_t* codes) const {
    for (std::int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
      encode_row(tile, row, factors, codes);
    }
  }

  void encode_row(const Tile& tile, std::int64_t row, const PerElement& factors,
                  std::uint8_t* codes) const {
    const std::int64_t index = row * x_.columns + tile.column;
    const Elements elements{x_.format, x_.at(row, tile.column),
                            static_cast<std::size_t>(tile.width), index};
    scaling_.encode(elements, factors.data(), codes + index);
  }

  const ElementMatrix& x_;
  const Scaling& scaling_;
  const BlockOutputs<Scaling>& outputs_;
};

// Block quantization into newly allocated tensors.

template <typename Scaling>
BlockOutput<Scaling> get_output(const ops::BlockCodes& quantized) {
  if (!quantized.codes.defined()) return {};
  return {static_cast<std::uint8_t*>(quantized.codes.mutable_data_ptr()),
          static_cast<typename Scaling::ScaleCode*>(quantized.scale_inv.mutable_data_ptr())};
}

inline ElementMatrix as_matrix(const at::Tensor& contiguous, FormatId format) {
  return {format, contiguous.const_data_ptr(), contiguous.size(0), contiguous.size(1)};
}

template <typename Scaling>
ops::BlockCodesPair quantize_blocks(const at::Tensor& x, FormatId input, ScalingMode mode,
                                    const Scaling& scaling, const ops::Orientations& orientations) {
  using ScaleCode = typename Scaling::ScaleCode;
  const at::Tensor contiguous = x.contiguous();
  const ElementMatrix matrix = as_matrix(contiguous, input);
  const ops::BlockCodesPair pair =
      ops::empty_block_codes(x, mode, c10::CppTypeToScalarType<ScaleCode>::value, orientations);
  const BlockOutputs<Scaling> outputs{
      get_output<Scaling>(pair.rowwise), get_output<Scaling>(pair.columnwise), {}};
  BlockTiles<Scaling>(matrix, scaling, outputs).quantize();
  return pair;
}

// One scale per square: codes [rows, columns], scales [rows / block, columns / block].
template <typename Scaling>
ops::BlockCodes quantize_squares(const at::Tensor& x, FormatId input, const Scaling& scaling) {
  using ScaleCode = typename Scaling::ScaleCode;
  const at::Tensor contiguous = x.contiguous();
  const ElementMatrix matrix = as_matrix(contiguous, input);
  const ops::BlockCodes squares{
      at::empty(x.sizes(), x.options().dtype(at::kByte)),
      at::empty({rounded_up_quotient(x.size(0), Scaling::kBlock),
                 rounded_up_quotient(x.size(1), Scaling::kBlock)},
                x.options().dtype(c10::CppTypeToScalarType<ScaleCode>::value)),
      {}};
  const BlockOutputs<Scaling> outputs{{}, {}, get_output<Scaling>(squares)};
  BlockTiles<Scaling>(matrix, scaling, outputs).quantize();
  return squares;
}

// ---- The Scaling of each block format.

// The E8M0 scale of a block.
inline BlockScale<std::uint8_t> get_e8m0_scale(FormatId element, float amax,
                                               ScaleRounding rounding) {
  const std::uint8_t code = dispatch_element_format(
      element, "e8m0_scale", [&]<typename Format>() { return e8m0_scale<Format>(amax, rounding); });
  return {code, e8m0_factor(code)};
}

// A NaN makes the scale of its block NaN if the elements cannot represent it.
inline NanInMaximum nan_in_e8m0_block(FormatId element) {
  return dispatch_element_format(element, "e8m0_scale", []<typename Format>() {
    return Format::kHasNan ? NanInMaximum::left_out : NanInMaximum::wins;
  });
}

// MXFP8 and MXFP6. `nan`: nan_in_e8m0_block(element).
template <NanInMaximum nan>
struct MxScaling {
  using ScaleCode = std::uint8_t;
  static constexpr std::int64_t kBlock = block_length(ScalingMode::mxfp8);
  static_assert(kBlock == block_length(ScalingMode::mxfp6_e3m2) &&
                kBlock == block_length(ScalingMode::mxfp6_e2m3));
  static constexpr NanInMaximum kNan = nan;

  FormatId element;
  ScaleRounding rounding;

  BlockScale<ScaleCode> get_scale(float amax) const {
    return get_e8m0_scale(element, amax, rounding);
  }
  void encode(const Elements& x, const float* factors, std::uint8_t* codes) const {
    quantize_range_by_scales(x.format, x.data, x.size, factors, element, codes);
  }
};

// FP8 in 128-blocks.
struct Fp8BlockScaling {
  using ScaleCode = float;
  static constexpr std::int64_t kBlock = block_length(ScalingMode::block_1d);
  static constexpr NanInMaximum kNan = NanInMaximum::left_out;

  FormatId element;
  float fp8_max;
  float largest_scale;  // the largest value of x's dtype
  bool power_of_2_scales;
  float amax_epsilon;

  static Fp8BlockScaling of(FormatId element, FormatId input, bool power_of_2_scales,
                            float amax_epsilon) {
    constexpr auto kMax = []<typename Format>() { return Format::kMax; };
    return {element, dispatch_fp8_format(element, "quantize_fp8_blocks", kMax),
            dispatch_high_precision_format(input, "quantize_fp8_blocks", kMax), power_of_2_scales,
            amax_epsilon};
  }

  BlockScale<ScaleCode> get_scale(float amax) const {
    const float scale =
        current_scale(amax, fp8_max, amax_epsilon, power_of_2_scales, largest_scale);
    return {1.0F / scale, scale};
  }
  void encode(const Elements& x, const float* factors, std::uint8_t* codes) const {
    quantize_range_by_scales(x.format, x.data, x.size, factors, element, codes);
  }
};

// The largest finite magnitude, from which packed FP4 computes the per-tensor scale.
inline float largest_number(const ElementMatrix& x) {
  return at::parallel_reduce(
      0, x.rows * x.columns, kGrain, 0.0F,
      [&](std::int64_t begin, std::int64_t end, float so_far) {
        float largest = 0.0F;
        const auto size = static_cast<std::size_t>(end - begin);
        block_maxima(x.format, x.at(0, begin), size, size, NanInMaximum::left_out, &largest);
        return std::max(so_far, largest);
      },
      [](float a, float b) { return std::max(a, b); });
}

}  // namespace telens::kernels
