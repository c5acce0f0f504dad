// Codes that a tensor carries to the layer that takes it: one whose own cast would make codes of
// this kind takes them and casts nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "core/quantization/quantizer.h"

namespace telens {

// Gives `values`, which are what the codes stand for, the codes to carry. They count for as long as
// the values stay as they are, in this memory. Returns `values`.
TELENS_EXPORT at::Tensor carry_codes(at::Tensor values, QuantizedTensor codes);

// Tells what a tensor without values of its own stands for, such as Python's QuantizedTensor. The
// tensor shares the codes: a change of them is one of the tensor.
TELENS_EXPORT void stand_for_codes(const at::Tensor& tensor,
                                   std::shared_ptr<const QuantizedTensor> codes);

// False for most tensors, by one look at the tensor: it carries no codes and stands for none.
inline bool may_have_codes(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->get_backend_meta() != nullptr;
}

// The codes that a tensor carries or stands for; nullptr: none, or it was changed since.
TELENS_EXPORT const QuantizedTensor* carried_codes(const at::Tensor& tensor);

// True for a tensor that stands for its codes.
TELENS_EXPORT bool stands_for_codes(const at::Tensor& tensor);

// The carried codes, if `quantizer` makes codes of their format, scaling and options. nullptr: none
// that fit, no quantizer, or one of a user's own class, which is asked in any case.
const QuantizedTensor* carried_codes_for(const at::Tensor& tensor, const Quantizer* quantizer);

// The same codes as those of a matrix.
QuantizedTensor codes_of_matrix(QuantizedTensor codes);

// Counts a change of the codes (tensor_version.h).
TELENS_EXPORT void count_change(const QuantizedTensor& codes);

}  // namespace telens
