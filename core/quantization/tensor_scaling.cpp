#include "core/quantization/tensor_scaling.h"

#include <utility>

#include "core/base/error.h"
#include "core/ops/optional_tensor.h"
#include "core/ops/quantize.h"

namespace telens {

using ops::if_defined;

QuantizedTensor quantize_with_scale(const at::Tensor& x, const at::Tensor& scale,
                                    const at::Tensor& amax, const Quantizer& quantizer) {
  const at::Tensor matrix = flattened(x);
  QuantizedTensor out;
  out.format = quantizer.format();
  out.mode = ScalingMode::tensor;
  out.dtype = x.scalar_type();
  out.sizes = x.sizes().vec();
  const at::Tensor scale_inv = scale.reciprocal();
  if (quantizer.usage().columnwise) {
    // With one scale the codes of the transposed matrix are the transposed codes.
    auto both = ops::quantize_fp8_both(matrix, scale, if_defined(amax), quantizer.format());
    out.columnwise = {std::move(both.transposed), scale_inv};
    if (quantizer.usage().rowwise) out.rowwise = {std::move(both.codes), scale_inv};
  } else {
    const at::Tensor codes = ops::quantize_fp8(matrix, scale, if_defined(amax), quantizer.format());
    if (quantizer.usage().rowwise) out.rowwise = {codes, scale_inv};
  }
  return out;
}

QuantizedTensor under_scale(ops::OrientedCodes codes, const at::Tensor& scale, FormatId format,
                            at::ScalarType dtype) {
  QuantizedTensor out;
  out.format = format;
  out.mode = ScalingMode::tensor;
  out.dtype = dtype;
  out.sizes = codes.codes.sizes().vec();
  const at::Tensor scale_inv = scale.reciprocal();
  out.rowwise = {std::move(codes.codes), scale_inv};
  if (codes.transposed.defined()) out.columnwise = {std::move(codes.transposed), scale_inv};
  return out;
}

void quantize_with_scale_into(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& amax,
                              const Quantizer& quantizer, QuantizedTensor& out) {
  if (x.sizes() != at::IntArrayRef(out.sizes) || out.format != quantizer.format() ||
      out.mode != ScalingMode::tensor) {
    raise<ShapeError>(
        "quantize: the storage to fill is {} {} for a tensor of shape {}; got shape {} and a "
        "quantizer to {}",
        name_of(out.mode), name_of(out.format), c10::str(at::IntArrayRef(out.sizes)),
        c10::str(x.sizes()), name_of(quantizer.format()));
  }
  const at::Tensor codes =
      ops::quantize_fp8(flattened(x), scale, if_defined(amax), quantizer.format());
  const at::Tensor scale_inv = scale.reciprocal();
  if (out.rowwise.defined()) {
    out.rowwise.codes.copy_(codes);
    out.rowwise.scale_inv.copy_(scale_inv);
  }
  // As quantize made them both orientations are views of one storage; a copied or loaded tensor has
  // two.
  const bool shared = out.rowwise.defined() && out.columnwise.defined() &&
                      out.columnwise.codes.is_alias_of(out.rowwise.codes) &&
                      out.columnwise.scale_inv.is_alias_of(out.rowwise.scale_inv);
  if (out.columnwise.defined() && !shared) {
    out.columnwise.codes.copy_(codes.t());
    out.columnwise.scale_inv.copy_(scale_inv);
  }
}

}  // namespace telens
