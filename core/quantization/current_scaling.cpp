#include "core/quantization/current_scaling.h"

#include <utility>

#include "core/base/error.h"
#include "core/distributed/collectives.h"
#include "core/formats/dispatch.h"
#include "core/ops/quantize.h"
#include "core/ops/scaling.h"
#include "core/ops/tensor_utils.h"

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
    // With per-tensor scaling, the transposed codes are the codes of the transposed matrix.
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

QuantizedTensor wrap_codes(ops::OrientedCodes codes, const at::Tensor& scale, FormatId format,
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
  // quantize() creates both orientations as views of the same storage; a copied or loaded tensor
  // has two storages.
  const bool shared = out.rowwise.defined() && out.columnwise.defined() &&
                      out.columnwise.codes.is_alias_of(out.rowwise.codes) &&
                      out.columnwise.scale_inv.is_alias_of(out.rowwise.scale_inv);
  if (out.columnwise.defined() && !shared) {
    out.columnwise.codes.copy_(codes.t());
    out.columnwise.scale_inv.copy_(scale_inv);
  }
}

CurrentScalingQuantizer::CurrentScalingQuantizer(FormatId format, CurrentScalingOptions options,
                                                 Usage usage)
    : Quantizer(format, usage), options_(options) {}

ScalingMode CurrentScalingQuantizer::mode() const { return ScalingMode::tensor; }

at::Tensor CurrentScalingQuantizer::scale_for(const at::Tensor& x) const {
  const float fp8_max = dispatch_fp8_format(format(), "current scaling",
                                            []<typename Format>() { return Format::kMax; });
  const at::Tensor amax = ops::amax(x);
  if (amax_reduction_group()) {
    AmaxReduction reduction;
    reduction.add(amax.view({1}), amax_reduction_group());
    reduction.run();
  }
  return ops::scale_from_amax(amax, fp8_max, options_.amax_epsilon, options_.power_2_scale);
}

QuantizedTensor CurrentScalingQuantizer::quantize(const at::Tensor& x, Usage usage) const {
  return quantize_with_scale(x, {scale_for(x), {}, format()}, usage);
}

void CurrentScalingQuantizer::quantize_into(const at::Tensor& x, QuantizedTensor& out) const {
  quantize_with_scale_into(x, {scale_for(x), {}, format()}, out);
}

std::shared_ptr<Quantizer> CurrentScalingQuantizer::copy() const {
  return std::make_shared<CurrentScalingQuantizer>(*this);
}

bool CurrentScalingQuantizer::quantizes_as(const Quantizer& other) const {
  return Quantizer::quantizes_as(other) &&
         options_ == static_cast<const CurrentScalingQuantizer&>(other).options_;
}

std::shared_ptr<Quantizer> Float8CurrentScaling::make_quantizer(TensorRole role,
                                                                DelayedScalingState*) const {
  const CurrentScalingOptions& options = is_backward(role)            ? fp8_quant_bwd_grad
                                         : role == TensorRole::weight ? fp8_quant_fwd_weight
                                                                      : fp8_quant_fwd_inp;
  return std::make_shared<CurrentScalingQuantizer>(get_format(role), options);
}

}  // namespace telens
