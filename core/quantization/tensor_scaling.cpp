#include "core/quantization/tensor_scaling.h"

#include <utility>

#include "core/base/error.h"
#include "core/ops/optional_tensor.h"
#include "core/ops/quantize.h"

namespace telens {

using ops::if_defined;

QuantizedTensor quantize_with_scale(const at::Tensor& x, const TensorScale& scaling, Usage usage) {
  const at::Tensor matrix = flattened(x);
  QuantizedTensor out;
  out.format = scaling.format;
  out.mode = ScalingMode::tensor;
  out.dtype = x.scalar_type();
  out.sizes = x.sizes().vec();
  const at::Tensor scale_inv = scaling.scale.reciprocal();
  if (usage.columnwise) {
    // With one scale the codes of the transposed matrix are the transposed codes.
    auto both =
        ops::quantize_fp8_both(matrix, scaling.scale, if_defined(scaling.amax), scaling.format);
    out.columnwise = {std::move(both.transposed), scale_inv};
    if (usage.rowwise) out.rowwise = {std::move(both.codes), scale_inv};
  } else {
    const at::Tensor codes =
        ops::quantize_fp8(matrix, scaling.scale, if_defined(scaling.amax), scaling.format);
    if (usage.rowwise) out.rowwise = {codes, scale_inv};
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

void quantize_with_scale_into(const at::Tensor& x, const TensorScale& scaling,
                              QuantizedTensor& out) {
  if (x.sizes() != at::IntArrayRef(out.sizes) || out.format != scaling.format ||
      out.mode != ScalingMode::tensor) {
    raise<ShapeError>(
        "quantize: the storage to fill is {} {} for a tensor of shape {}; got shape {} and a "
        "quantizer to {}",
        get_name(out.mode), get_name(out.format), c10::str(at::IntArrayRef(out.sizes)),
        c10::str(x.sizes()), get_name(scaling.format));
  }
  const at::Tensor codes =
      ops::quantize_fp8(flattened(x), scaling.scale, if_defined(scaling.amax), scaling.format);
  const at::Tensor scale_inv = scaling.scale.reciprocal();
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
