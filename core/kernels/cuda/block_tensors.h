// Tensors of the block formats as the kernels' arguments. No CUDA header, so that the tests of
// device code on the host use it too.
#pragma once

#include <ATen/core/Tensor.h>

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

}  // namespace telens::cuda
