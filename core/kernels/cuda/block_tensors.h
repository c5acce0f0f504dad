// Tensors of the block formats as the kernels' arguments. No CUDA header, so that the tests of
// device code on the host use it too.
#pragma once

#include <ATen/core/Tensor.h>

#include <bit>

#include "core/kernels/cuda/block_dequantize.cuh"
#include "core/kernels/cuda/block_tiles.cuh"
#include "core/ops/block_quantize.h"

namespace telens::cuda {

inline BlockMatrix matrix_of(const at::Tensor& contiguous) {
  return {contiguous.const_data_ptr(), contiguous.size(0), contiguous.size(1)};
}

// Of one orientation, where undefined tensors are nullptr. scale_inv: [lines, blocks].
template <typename ScaleCode>
BlockOutput<ScaleCode> output_of(const ops::BlockCodes& quantized) {
  BlockOutput<ScaleCode> output{};
  if (quantized.codes.defined()) {
    output.codes = quantized.codes.mutable_data_ptr<std::uint8_t>();
  }
  if (quantized.scale_inv.defined()) {
    output.scales = quantized.scale_inv.mutable_data_ptr<ScaleCode>();
    output.line_stride = quantized.scale_inv.stride(0);
    output.block_stride = quantized.scale_inv.stride(1);
  }
  return output;
}

// Codes and values as they lie in memory: of transposed views the matrices under them.
struct CodesInMemory {
  at::Tensor codes;
  at::Tensor values;
  bool transposed;
};

// What dequantizes the codes under the scales of scale_inv, a matrix of any strides.
inline BlockDequantizeArguments dequantize_arguments(const CodesInMemory& memory,
                                                     const at::Tensor& scale_inv,
                                                     const at::Tensor& tensor_scale,
                                                     ScalingMode mode) {
  const auto log2 = [](std::int64_t power) {
    return std::countr_zero(static_cast<std::uint64_t>(power));
  };
  const bool transposed = memory.transposed;
  BlockDequantizeArguments arguments{};
  arguments.codes = memory.codes.const_data_ptr<std::uint8_t>();
  arguments.rows = memory.values.size(0);
  arguments.columns = memory.values.size(1);
  arguments.pairs = mode != ScalingMode::nvfp4 ? CodePairs::none
                    : transposed               ? CodePairs::down_columns
                                               : CodePairs::along_row;
  arguments.scales = scale_inv.const_data_ptr();
  arguments.row_shift = log2(transposed ? block_length(mode) : block_height(mode));
  arguments.column_shift = log2(transposed ? block_height(mode) : block_length(mode));
  arguments.row_stride = scale_inv.stride(transposed ? 1 : 0);
  arguments.column_stride = scale_inv.stride(transposed ? 0 : 1);
  arguments.tensor_scale = tensor_scale.defined() ? tensor_scale.const_data_ptr<float>() : nullptr;
  arguments.values = memory.values.mutable_data_ptr();
  return arguments;
}

}  // namespace telens::cuda
