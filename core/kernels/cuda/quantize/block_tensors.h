// Tensors of the block formats as the kernels' arguments. No CUDA header, so that the tests of
// device code on the host use it too.
#pragma once

#include <ATen/core/Tensor.h>

#include <bit>

#include "core/kernels/cuda/quantize/block_decode.cuh"
#include "core/kernels/cuda/quantize/block_tiles.cuh"
#include "core/kernels/cuda/statistics/block_copies.cuh"
#include "core/kernels/cuda/statistics/block_errors.cuh"
#include "core/ops/block_quantize.h"
#include "core/ops/block_quantize_checks.h"

namespace telens::cuda {

inline BlockMatrix as_matrix(const at::Tensor& contiguous) {
  return {contiguous.const_data_ptr(), contiguous.size(0), contiguous.size(1)};
}

// Pointers of one orientation; undefined tensors have nullptr. scale_inv: [lines, blocks].
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

// Codes as they lie in memory: of a transposed view the matrix under it.
struct CodesInMemory {
  at::Tensor codes;
  bool transposed;

  static CodesInMemory of(const at::Tensor& codes) {
    const bool transposed = ops::is_transposed(codes);
    return {transposed ? codes.t() : codes.contiguous(), transposed};
  }
  // Another matrix of that orientation in the same order.
  at::Tensor in_order(const at::Tensor& matrix) const {
    return (transposed ? matrix.t() : matrix).contiguous();
  }
};

// Under the scales of scale_inv, a matrix of any strides.
inline CodedMatrix coded_matrix(const CodesInMemory& memory, const at::Tensor& scale_inv,
                                const at::Tensor& tensor_scale, ScalingMode mode) {
  const auto log2 = [](std::int64_t power) {
    return std::countr_zero(static_cast<std::uint64_t>(power));
  };
  const auto& [codes, transposed] = memory;
  const bool packed = is_packed_fp4(mode);
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

// A tensor and its codes, and the memory that the matrix refers to.
struct CastInMemory {
  CodesInMemory codes;
  at::Tensor x;
  CastMatrix matrix;

  // x: in the orientation of the codes.
  static CastInMemory of(const at::Tensor& x, const ops::BlockCodes& cast, ScalingMode mode) {
    const auto codes = CodesInMemory::of(cast.codes);
    const at::Tensor in_order = codes.in_order(x);
    return {codes,
            in_order,
            {coded_matrix(codes, cast.scale_inv, cast.tensor_scale, mode), as_matrix(in_order),
             /*whole=*/false}};
  }
};

// How its blocks lie in memory, and where their errors go: as the blocks of scale_inv, one row of
// them after the other.
inline BlockErrorsArguments block_errors_arguments(const CastInMemory& cast, ScalingMode mode,
                                                   const at::Tensor& words) {
  const std::int64_t across = words.size(1);
  const bool transposed = cast.codes.transposed;
  return {cast.matrix,
          block_height(mode) > 1 ? BlockDirection::squares
          : transposed           ? BlockDirection::down_columns
                                 : BlockDirection::along_rows,
          static_cast<int>(block_length(mode)),
          reinterpret_cast<BlockErrors*>(words.mutable_data_ptr<std::int64_t>()),
          transposed ? 1 : across,
          transposed ? across : 1};
}

// Two copies of a matrix, and the memory that the arguments refer to.
struct CopiesInMemory {
  CodesInMemory rowwise;
  CodesInMemory columnwise;
  at::Tensor values;  // values of the second copy in its codes' place; undefined: those count
  CopiesArguments arguments;

  static CopiesInMemory of(const ops::BlockCodes& first, const ops::BlockCodes& second,
                           ScalingMode mode, const at::Tensor& values) {
    CopiesInMemory copies{{first.codes.contiguous(), false},
                          {second.codes.t().contiguous(), true},
                          values.defined() ? values.contiguous() : at::Tensor(),
                          {}};
    copies.arguments.first =
        coded_matrix(copies.rowwise, first.scale_inv, first.tensor_scale, mode);
    copies.arguments.second =
        coded_matrix(copies.columnwise, second.scale_inv, second.tensor_scale, mode);
    copies.arguments.values = values.defined() ? copies.values.const_data_ptr<float>() : nullptr;
    copies.arguments.rows = first.codes.size(0);
    copies.arguments.columns = second.codes.size(0);
    return copies;
  }
};

}  // namespace telens::cuda
