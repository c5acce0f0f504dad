#include "core/quantization/block_quantizer.h"

#include "core/base/error.h"

namespace telens {
namespace {

QuantizedData get_data(const ops::BlockCodes& quantized) {
  return {quantized.codes, quantized.scale_inv, quantized.tensor_scale};
}

}  // namespace

QuantizedTensor BlockQuantizer::quantize(const at::Tensor& x, Usage usage) const {
  const auto [rowwise, columnwise] =
      quantize_matrix(flattened(x), {usage.rowwise, usage.columnwise});
  QuantizedTensor out;
  out.rowwise = get_data(rowwise);
  out.columnwise = get_data(columnwise);
  out.format = format();
  out.mode = mode();
  out.dtype = x.scalar_type();
  out.sizes = x.sizes().vec();
  out.blocks = options_;
  out.power_of_2_scales = makes_power_of_2_scales();
  return out;
}

void BlockQuantizer::quantize_into(const at::Tensor& x, QuantizedTensor& out) const {
  if (x.sizes() != at::IntArrayRef(out.sizes) || out.format != format() || out.mode != mode()) {
    raise<ShapeError>(
        "quantize: the storage to fill is {} {} for a tensor of shape {}; got shape {} and a "
        "quantizer to {} {}",
        get_name(out.mode), get_name(out.format), c10::str(at::IntArrayRef(out.sizes)),
        c10::str(x.sizes()), get_name(mode()), get_name(format()));
  }
  const auto [rowwise, columnwise] =
      quantize_matrix(flattened(x), {out.rowwise.defined(), out.columnwise.defined()});
  out.rowwise.fill(get_data(rowwise));
  out.columnwise.fill(get_data(columnwise));
  out.blocks = options_;
  out.power_of_2_scales = makes_power_of_2_scales();
}

bool BlockQuantizer::makes_power_of_2_scales() const {
  return has_128_blocks(mode()) && options_.power_of_2_scales;
}

bool BlockQuantizer::quantizes_as(const Quantizer& other) const {
  return Quantizer::quantizes_as(other) &&
         options_ == static_cast<const BlockQuantizer&>(other).options_;
}

}  // namespace telens
