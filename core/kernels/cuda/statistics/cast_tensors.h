// Converts casts and copies to the arguments of kernels that compare them. Includes no CUDA header,
// so that the host tests of device code can use it.
#pragma once

#include "core/kernels/cuda/blocks/block_tensors.h"
#include "core/kernels/cuda/statistics/block_errors.cuh"

namespace telens::cuda {

// A tensor and its codes, with ownership of the memory that the matrix refers to.
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

// Returns the memory layout of the blocks and the destination of their errors: the blocks of
// scale_inv, row-major.
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

// Two copies of a matrix, with ownership of the memory that the arguments refer to.
struct CopiesInMemory {
  CodesInMemory rowwise;
  CodesInMemory columnwise;
  at::Tensor values;  // values that replace the second copy's codes; may be undefined
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
