// Base class of quantizers with one scale per block.
#pragma once

#include "core/ops/block_quantize.h"
#include "core/quantization/quantizer.h"

namespace telens {

// Scales come from the blocks themselves, so state and calibration are not needed.
class TELENS_EXPORT BlockQuantizer : public Quantizer {
 public:
  BlockQuantizer(FormatId format, BlockOptions options, Usage usage)
      : Quantizer(format, usage), options_(options) {}

  using Quantizer::quantize;
  QuantizedTensor quantize(const at::Tensor& x, Usage usage) const final;
  void quantize_into(const at::Tensor& x, QuantizedTensor& out) const final;
  void calibrate(const at::Tensor&) const final {}

  bool quantizes_as(const Quantizer& other) const final;

  const BlockOptions& options() const { return options_; }

 protected:
  // Quantizes a matrix.
  virtual ops::BlockCodesPair quantize_matrix(const at::Tensor& x,
                                              const ops::Orientations& orientations) const = 0;

 private:
  bool makes_power_of_2_scales() const;  // FP32 scales of 128-blocks

  BlockOptions options_;
};

}  // namespace telens
