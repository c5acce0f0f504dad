// Quantizes a tensor that arrives in chunks: all chunks share one scale, as if they were one
// tensor.
#pragma once

#include <memory>
#include <vector>

#include "core/quantization/quantizer.h"

namespace telens {

class ChunkedQuantizer {
 public:
  // `quantizer`: per-tensor delayed or current scaling. If it is nullptr, chunks are not quantized:
  // their values are used with the scale 1.
  explicit ChunkedQuantizer(std::shared_ptr<const Quantizer> quantizer);
  // Uses the scale of an earlier cast (FP32, 1 element) and records no amax.
  ChunkedQuantizer(std::shared_ptr<const Quantizer> quantizer, at::Tensor scale);

  bool quantizes() const { return quantizer_ != nullptr; }

  // True if the scale comes from the chunks (current scaling): call observe() for all of them
  // before the first quantize().
  bool needs_observation() const { return quantizes() && !scale_.defined(); }
  void observe(const at::Tensor& chunk);

  // Returns uint8 codes of the chunk's shape. Delayed scaling records each chunk's amax. Requires a
  // quantizer.
  at::Tensor quantize(const at::Tensor& chunk);

  // Returns the decoded codes without their scale (FP32), as GEMMs multiply them.
  at::Tensor decode(const at::Tensor& chunk);

  // Returns the quantized and dequantized chunk in `dtype`.
  at::Tensor round(const at::Tensor& chunk, at::ScalarType dtype);

  // FP32, 1 element; defined after the first chunk was quantized.
  const at::Tensor& scale() const { return scale_; }
  at::Tensor scale_inv() const { return scale_.reciprocal(); }
  FormatId format() const { return quantizer_->format(); }

 private:
  std::shared_ptr<const Quantizer> quantizer_;
  at::Tensor scale_;
  at::Tensor amax_;    // of the observed chunks; undefined before the first
  bool records_amax_;  // into the history of delayed scaling
};

// Quantizes several tensors with one scale.
std::vector<at::Tensor> quantize_together(ChunkedQuantizer& quantizer,
                                          const std::vector<at::Tensor>& tensors);

// Quantizes and dequantizes several tensors with one scale, each to its dtype.
std::vector<at::Tensor> round_together(ChunkedQuantizer& quantizer,
                                       const std::vector<at::Tensor>& tensors,
                                       const std::vector<at::ScalarType>& dtypes);

}  // namespace telens
