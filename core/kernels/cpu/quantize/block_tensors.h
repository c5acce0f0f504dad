// Block quantization (core/kernels/cpu/quantize/block_tiles.h) into newly allocated tensors.
#pragma once

#include <ATen/ops/empty.h>

#include "core/kernels/cpu/quantize/block_tiles.h"
#include "core/ops/block_quantize_checks.h"

namespace telens::kernels {

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

}  // namespace telens::kernels
