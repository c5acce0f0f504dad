// The cast of a tensor that comes in parts: all of them get codes under one scale, as if they lay
// in one tensor.
#pragma once

#include <memory>
#include <vector>

#include "core/quantization/quantizer.h"

namespace telens {

class PartedCast {
 public:
  // A quantizer with one scale a tensor, of delayed or current scaling. nullptr: nothing is cast,
  // parts are their own values under the scale 1.
  explicit PartedCast(std::shared_ptr<const Quantizer> quantizer);
  // Under the scale of an earlier cast, FP32 with 1 element; no history gets an amax.
  PartedCast(std::shared_ptr<const Quantizer> quantizer, at::Tensor scale);

  bool casts() const { return quantizer_ != nullptr; }

  // The scale is made of the parts, which are then to be shown before the first codes are made.
  bool looks_first() const { return casts() && !scale_.defined(); }
  void look(const at::Tensor& part);

  // uint8 of the part's shape. Under delayed scaling the amax of each part goes to the history. Not
  // without a quantizer.
  at::Tensor codes(const at::Tensor& part);

  // The values of the part's codes without their scale, FP32: products multiply these.
  at::Tensor values(const at::Tensor& part);

  // The part after the cast, in that dtype.
  at::Tensor rounded(const at::Tensor& part, at::ScalarType dtype);

  // FP32, 1 element; known once looks_first() is false and a part came.
  const at::Tensor& scale() const { return scale_; }
  at::Tensor scale_inv() const { return scale_.reciprocal(); }
  FormatId format() const { return quantizer_->format(); }

 private:
  std::shared_ptr<const Quantizer> quantizer_;
  at::Tensor scale_;
  at::Tensor amax_;  // that of the parts looked at; undefined: none
  bool remembers_;   // amaxes go to the history
};

// The codes of several tensors under one scale.
std::vector<at::Tensor> cast_together(PartedCast& cast, const std::vector<at::Tensor>& tensors);

// The tensors after a cast under one scale, each in its dtype.
std::vector<at::Tensor> rounded_together(PartedCast& cast, const std::vector<at::Tensor>& tensors,
                                         const std::vector<at::ScalarType>& dtypes);

}  // namespace telens
