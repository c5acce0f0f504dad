// Device code. NVFP4: E2M1 in blocks of 16 elements with E4M3 scales, multiplied by one per-tensor
// scale.
#pragma once

#include <cmath>

#include "core/formats/philox.h"
#include "core/formats/scheme.h"
#include "core/formats/stochastic_rounding.h"
#include "core/kernels/cuda/conversions.cuh"
#include "core/kernels/cuda/quantize/block_scaling.cuh"
#include "core/ops/four_over_six_formula.h"
#include "core/ops/scale_formula.h"

namespace telens::cuda {

// The inputs of an orientation's tensor scale, and its destination.
struct Nvfp4TensorScale {
  const float* amax;       // [lines], the largest finite magnitudes
  float* scale;            // [lines]; nullptr if not requested
  std::int64_t lines = 1;  // 1 for the tensor; otherwise one per row or column
};

struct Nvfp4Arguments {
  BlockMatrix matrix;
  BlockOutputs<std::uint8_t> outputs;
  Nvfp4TensorScale rowwise;
  Nvfp4TensorScale columnwise;
  const std::int64_t* random_state;  // [2], key and offset; nullptr: rounds to nearest
  bool squares;
  bool by_lines = false;  // requires no random_state and no squares
};

// by_lines: each line has a scale instead of the per-tensor scale.
template <bool by_chance, bool by_lines = false>
struct Nvfp4Scaling {
  static_assert(!by_chance || !by_lines);
  using ScaleCode = std::uint8_t;
  static constexpr int kBlock = block_length(ScalingMode::nvfp4);
  static constexpr NanInMaximum kNan = TwoLevelScaling::kNan;
  static constexpr bool kTwoCodesAByte = true;
  static constexpr bool kOneScaleASquare = false;
  static constexpr bool kScalesLines = by_lines;

  TwoLevelScaling scales;  // the tensor's
  const float* amaxes;     // one per line
  ElementWords words;      // by chance

  // orientation: 0 rowwise, 1 columnwise.
  static TELENS_DEVICE Nvfp4Scaling of(const Nvfp4TensorScale& tensor, std::uint32_t orientation,
                                       const std::int64_t* random_state) {
    Nvfp4Scaling scaling{{}, tensor.amax, {}};
    if constexpr (!by_lines) scaling.scales = TwoLevelScaling::of(*tensor.amax);
    if constexpr (by_chance) scaling.words = ElementWords::of(random_state, orientation);
    return scaling;
  }

  TELENS_DEVICE BlockScale<ScaleCode> get_scale(float amax) const { return scales.get_scale(amax); }
  TELENS_DEVICE BlockScale<ScaleCode> get_scale(float amax, std::int64_t line) const {
    return TwoLevelScaling::of(amaxes[line]).get_scale(amax);
  }

  template <typename Input, bool whole, typename FactorOf>
  TELENS_DEVICE EightWords<std::uint8_t> encode(const EightWords<typename Input::Bits>& x,
                                                std::int64_t index,
                                                const FactorOf& get_factor) const {
    float scaled[kColumnsOfThread];
    TELENS_UNROLL
    for (int i = 0; i < kColumnsOfThread; ++i) scaled[i] = widen_at<Input>(x, i) * get_factor(i);
    if constexpr (by_chance) {
      return encode_by_chance<whole>(scaled, index);
    } else {
      return encode_nearest(scaled);
    }
  }

 private:
  template <bool whole>
  TELENS_DEVICE EightWords<std::uint8_t> encode_by_chance(const float (&scaled)[kColumnsOfThread],
                                                          std::int64_t index) const {
    EightWords<std::uint8_t> codes{};
    TELENS_UNROLL
    for (int four = 0; four < kColumnsOfThread; four += 4) {
      PhiloxCounter random{};
      if constexpr (whole) random = words.of_four(static_cast<std::uint64_t>(index + four));
      TELENS_UNROLL
      for (int i = 0; i < 4; ++i) {
        if constexpr (!whole)
          random[i] = words.of_one(static_cast<std::uint64_t>(index + four + i));
        const std::uint32_t code = encode_e2m1_stochastically(scaled[four + i], random[i]);
        codes.words[four / 4] |= code << (8 * i);
      }
    }
    return codes;
  }

  // The code of a NaN is positive.
  static TELENS_DEVICE EightWords<std::uint8_t> encode_nearest(
      const float (&scaled)[kColumnsOfThread]) {
    EightWords<std::uint8_t> codes{};
    bool has_nan = false;
    TELENS_UNROLL
    for (int i = 0; i < kColumnsOfThread; ++i) {
      codes.words[i / 4] |= encode_e2m1_magnitude(fabsf(scaled[i])) << (i % 4 * 8);
      has_nan |= scaled[i] != scaled[i];
    }
    TELENS_UNROLL
    for (int four = 0; four < kColumnsOfThread; four += 4) {
      codes.words[four / 4] |= gather_tops(scaled + four) >> 4 & kSignsOfCodes;
    }
    if (!has_nan) return codes;
    TELENS_UNROLL
    for (int i = 0; i < kColumnsOfThread; ++i) {
      if (scaled[i] != scaled[i]) codes.words[i / 4] &= ~(0x8U << (i % 4 * 8));
    }
    return codes;
  }

  static constexpr std::uint32_t kSignsOfCodes = 0x08080808U;

  // Returns the top bytes of four numbers, the first in the lowest byte.
  static TELENS_DEVICE std::uint32_t gather_tops(const float* four) {
    const auto tops = [](float first, float second) {
      return permute_bytes(bits_as<std::uint32_t>(first), bits_as<std::uint32_t>(second), 0x7373);
    };
    return permute_bytes(tops(four[0], four[1]), tops(four[2], four[3]), 0x5410);
  }
};

template <typename Thread>
TELENS_DEVICE void store_tensor_scales(const Nvfp4TensorScale& tensor, const Thread& thread) {
  if (tensor.scale == nullptr) return;
  for (std::int64_t i = thread.block() * kThreads + thread.index(); i < tensor.lines;
       i += thread.blocks() * kThreads) {
    tensor.scale[i] = TwoLevelScaling::of(tensor.amax[i]).tensor_scale;
  }
}

template <typename Input, bool whole, bool by_chance, bool by_lines = false, typename Thread>
TELENS_DEVICE void quantize_nvfp4(const Nvfp4Arguments& arguments, const Thread& thread,
                                  LinesShared<Input, Nvfp4Scaling<by_chance>::kBlock>& shared) {
  using Scaling = Nvfp4Scaling<by_chance, by_lines>;
  const auto rowwise = Scaling::of(arguments.rowwise, 0, arguments.random_state);
  const auto columnwise = Scaling::of(arguments.columnwise, 1, arguments.random_state);
  store_tensor_scales(arguments.rowwise, thread);
  store_tensor_scales(arguments.columnwise, thread);
  quantize_lines<Input, whole>(arguments.matrix, arguments.outputs, rowwise, columnwise, thread,
                               shared);
}

// Both orientations use the rowwise orientation's scale and random words.
template <typename Input, bool whole, bool by_chance, typename Thread>
TELENS_DEVICE void quantize_nvfp4_squares(const Nvfp4Arguments& arguments, const Thread& thread,
                                          SquaresShared<Nvfp4Scaling<by_chance>::kBlock>& shared) {
  const auto scaling = Nvfp4Scaling<by_chance>::of(arguments.rowwise, 0, arguments.random_state);
  if (thread.block() == 0 && thread.index() == 0) {
    for (float* const scale : {arguments.rowwise.scale, arguments.columnwise.scale}) {
      if (scale != nullptr) *scale = scaling.scales.tensor_scale;
    }
  }
  quantize_squares<Input, whole>(arguments.matrix, arguments.outputs, scaling, thread, shared);
}

// ---- FP4 with blocks scaled to 4 or to 6.

struct FourOverSixArguments {
  const void* x;  // contiguous
  four_over_six::Matrix matrix;
  four_over_six::LineScales scales;
  // FP32 [1], or [lines] with one per line; nullptr if not requested.
  std::int64_t lines;
  float* tensor_scale;
  float* column_tensor_scale;
  four_over_six::Output output;      // rowwise, or of blocks down the columns
  four_over_six::Output columnwise;  // set in addition for squares, which have both
};

// The blocks of a launch.
enum class FourOverSixBlocks { along_rows, down_columns, squares };

inline std::int64_t get_count(FourOverSixBlocks blocks, const four_over_six::Matrix& matrix) {
  switch (blocks) {
    case FourOverSixBlocks::along_rows:
      return matrix.rows * matrix.blocks_across();
    case FourOverSixBlocks::down_columns:
      return matrix.blocks_down() * matrix.columns;
    case FourOverSixBlocks::squares:
      break;
  }
  return matrix.blocks_down() * matrix.blocks_across();
}

// A thread processes one block at a time.
template <typename Input, FourOverSixBlocks blocks, typename Thread>
TELENS_DEVICE void quantize_four_over_six(const FourOverSixArguments& arguments, std::int64_t count,
                                          const Thread& thread) {
  using Bits = typename Input::Bits;
  const std::int64_t first = thread.block() * kThreads + thread.index();
  const std::int64_t step = thread.blocks() * kThreads;
  for (float* const made : {arguments.tensor_scale, arguments.column_tensor_scale}) {
    for (std::int64_t i = first; made != nullptr && i < arguments.lines; i += step) {
      made[i] = arguments.scales.tensor_scale(i);
    }
  }
  const auto load = [&](std::int64_t index) {
    return widen<Input>(static_cast<const Bits*>(arguments.x)[index]);
  };
  for (std::int64_t i = first; i < count; i += step) {
    if constexpr (blocks == FourOverSixBlocks::along_rows) {
      quantize_along_row(load, arguments.matrix, arguments.scales, arguments.output, i);
    } else if constexpr (blocks == FourOverSixBlocks::down_columns) {
      quantize_down_column(load, arguments.matrix, arguments.scales, arguments.output, i);
    } else {
      quantize_square(load, arguments.matrix, arguments.scales, arguments.output,
                      arguments.columnwise, i);
    }
  }
}

}  // namespace telens::cuda
