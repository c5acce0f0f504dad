// Quantized payloads attached to high-precision tensors.
//
// A producer that has already quantized its output (for example an FP8 attention) attaches the FP8
// data to the tensor that it returns. A consumer whose quantizer has the same format, scaling mode
// and options reuses the data instead of quantizing again.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "core/quantization/quantizer.h"

namespace telens {

// Attaches `payload`, whose values are `values`, and returns `values`. The payload is valid until
// the values are modified in place, resized or moved to other storage.
TELENS_EXPORT at::Tensor attach_quantized(at::Tensor values, QuantizedTensor payload);

// Makes `tensor`, which has no values itself (Python's QuantizedTensor), a handle for `payload`.
// Both share the data: an in-place change of one is a change of the other.
TELENS_EXPORT void bind_quantized(const at::Tensor& tensor,
                                  std::shared_ptr<const QuantizedTensor> payload);

// A fast check for hot paths. Returns false if the tensor has no payload.
inline bool may_have_quantized(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->get_backend_meta() != nullptr;
}

// Returns the attached or bound payload, or nullptr if there is none or if the values have changed
// since it was attached.
TELENS_EXPORT const QuantizedTensor* find_quantized(const at::Tensor& tensor);

// Returns true if `tensor` is a handle without values.
TELENS_EXPORT bool is_quantized_handle(const at::Tensor& tensor);

// Returns the payload if `quantizer` would produce the same format, scaling mode and options.
// Returns nullptr if it would not, if `quantizer` is nullptr, or if it is a user-defined class,
// which always quantizes itself.
const QuantizedTensor* find_reusable(const at::Tensor& tensor, const Quantizer* quantizer);

// Returns the payload viewed as a matrix [product of leading sizes, last size].
QuantizedTensor flatten_to_matrix(QuantizedTensor payload);

// Increments the version counters of the payload's tensors after an in-place change
// (core/ops/torch_internals.h).
TELENS_EXPORT void bump_version(const QuantizedTensor& payload);

}  // namespace telens
