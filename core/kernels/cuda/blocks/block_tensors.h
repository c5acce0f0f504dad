// Converts tensors of the block formats to kernel arguments. Includes no CUDA header, so that the
// host tests of device code can use it.
#pragma once

#include <ATen/core/Tensor.h>

#include <bit>

#include "core/kernels/cuda/blocks/block_decode.cuh"
#include "core/kernels/cuda/blocks/block_tiles.cuh"
#include "core/ops/block_quantize.h"

namespace telens::cuda {

inline BlockMatrix as_matrix(const at::Tensor& contiguous) {
  return {contiguous.const_data_ptr(), contiguous.size(0), contiguous.size(1)};
}

// The pointers of an orientation; nullptr for undefined tensors. scale_inv: [lines, blocks].
template <typename ScaleCode>
BlockOutput<ScaleCode> get_output(const ops::BlockCodes& quantized) {
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

// Codes in memory order: for a transposed view, the underlying matrix.
struct CodesInMemory {
  at::Tensor codes;
  bool transposed;

  static CodesInMemory of(const at::Tensor& codes) {
    const bool transposed = ops::is_transposed(codes);
    return {transposed ? codes.t() : codes.contiguous(), transposed};
  }
  // Returns another matrix of the same orientation in the same memory order.
  at::Tensor in_order(const at::Tensor& matrix) const {
    return (transposed ? matrix.t() : matrix).contiguous();
  }
};

// Describes the codes with the scales scale_inv, a matrix of any strides.
inline CodedMatrix coded_matrix(const CodesInMemory& memory, const at::Tensor& scale_inv,
                                const at::Tensor& tensor_scale, ScalingMode mode) {
  const auto log2 = [](std::int64_t power) {
    return std::countr_zero(static_cast<std::uint64_t>(power));
  };
  const auto& [codes, transposed] = memory;
  const bool packed = scheme(mode).is_packed();
  CodedMatrix matrix{};
  matrix.codes = codes.const_data_ptr<std::uint8_t>();
  matrix.rows = codes.size(0) * (packed && transposed ? 2 : 1);
  matrix.columns = codes.size(1) * (packed && !transposed ? 2 : 1);
  matrix.pairs = !packed      ? CodePairs::none
                 : transposed ? CodePairs::down_columns
                              : CodePairs::along_row;
  matrix.scales = scale_inv.const_data_ptr();
  matrix.row_shift = log2(transposed ? block_length(mode) : block_height(mode));
  matrix.column_shift = log2(transposed ? block_height(mode) : block_length(mode));
  matrix.row_stride = scale_inv.stride(transposed ? 1 : 0);
  matrix.column_stride = scale_inv.stride(transposed ? 0 : 1);
  if (!tensor_scale.defined()) return matrix;
  matrix.tensor_scale = tensor_scale.const_data_ptr<float>();
  if (tensor_scale.numel() > 1) {
    (transposed ? matrix.tensor_column_stride : matrix.tensor_row_stride) = 1;
  }
  return matrix;
}

}  // namespace telens::cuda
