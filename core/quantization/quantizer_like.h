// From a quantized tensor to the quantizer that makes such tensors.
#pragma once

#include <memory>

#include "core/base/error.h"
#include "core/quantization/quantizer.h"

namespace telens {

// Format, scaling and orientations are those of the tensor; per-tensor scales come from the amax of
// what is quantized.
TELENS_EXPORT std::shared_ptr<Quantizer> quantizer_like(const QuantizedTensor& tensor);

}  // namespace telens
