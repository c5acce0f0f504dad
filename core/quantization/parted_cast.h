// The cast of a tensor that comes in parts: all of them get codes under one scale, as if they lay
// in one tensor.
#pragma once

#include <memory>
#include <vector>

#include "core/quantization/quantizer.h"

namespace telens {

class PartedCast {
 public:
  // A quantizer with one scale a tensor, of delayed or current scaling.
  explicit PartedCast(std::shared_ptr<const Quantizer> quantizer);

  // The scale is made of the parts, which are then to be shown before the first codes are made.
  bool looks_first() const { return !scale_.defined(); }
  void look(const at::Tensor& part);

  // uint8 of the part's shape. Under delayed scaling the amax of each part goes to the history.
  at::Tensor codes(const at::Tensor& part);

  // FP32, 1 element; known once looks_first() is false, or codes were made.
  const at::Tensor& scale() const { return scale_; }
  at::Tensor scale_inv() const { return scale_.reciprocal(); }
  FormatId format() const { return quantizer_->format(); }

 private:
  std::shared_ptr<const Quantizer> quantizer_;
  at::Tensor scale_;
  at::Tensor amax_;  // that of the parts looked at; undefined: none
};

// The codes of several tensors under one scale.
std::vector<at::Tensor> cast_together(PartedCast& cast, const std::vector<at::Tensor>& tensors);

}  // namespace telens
