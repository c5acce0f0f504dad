// Device code. FP4 with blocks scaled to 4 or to 6.
#pragma once

#include "core/kernels/cuda/conversions.cuh"
#include "core/ops/four_over_six_formula.h"

namespace telens::cuda {

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
