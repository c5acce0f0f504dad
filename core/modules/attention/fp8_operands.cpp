#include "core/modules/attention/fp8_operands.h"

#include <ATen/ops/ones.h>

#include "core/ops/quantize.h"
#include "core/quantization/chunked_quantizer.h"

namespace telens {
namespace {

// FP32: no other dtype covers the range of block scales.
at::Tensor cast_over_size(const Quantizer& quantizer, const at::Tensor& x) {
  if (x.numel() == 0) return x.to(at::kFloat);
  QuantizedTensor quantized = quantizer.quantize(x, {.rowwise = true, .columnwise = false});
  quantized.dtype = at::kFloat;
  return quantized.dequantize();
}

at::Tensor cast_over_positions(const Quantizer& quantizer, const at::Tensor& x) {
  // One copy here saves a copy per block in the GEMM.
  return cast_over_size(quantizer, x.transpose(-1, -2)).transpose(-1, -2).contiguous();
}

CodedRows cast_both(const Quantizer& quantizer, const at::Tensor& x) {
  return {cast_over_size(quantizer, x), cast_over_positions(quantizer, x)};
}

CodedRows decode_rows(const at::Tensor& codes, FormatId format) {
  const at::Tensor values = decoded(codes, format);
  return {values, values};
}

CodedHeads decode_heads(const KeptInputs& inputs, FormatId format) {
  return {.query = decode_rows(inputs.query, format),
          .key = decode_rows(inputs.key, format),
          .value = decode_rows(inputs.value, format),
          .scale_inv = inputs.scale_inv};
}

at::Tensor make_no_scale(const at::Tensor& like) {
  return at::ones({1}, like.options().dtype(at::kFloat));
}

}  // namespace

KeptInputs cast_inputs(const QueryKeyValueHeads& heads, const std::shared_ptr<Quantizer>& qkv) {
  if (casts_in_blocks(*qkv)) return {heads.query, heads.key, heads.value, {}};
  ChunkedQuantizer cast(qkv);
  const std::vector<at::Tensor> codes =
      quantize_together(cast, {heads.query, heads.key, heads.value});
  return {codes[0], codes[1], codes[2], cast.scale_inv()};
}

CodedHeads make_forward_operands(const KeptInputs& inputs, const Quantizer& qkv) {
  if (!casts_in_blocks(qkv)) return decode_heads(inputs, qkv.format());
  return {.query = {.over_size = cast_over_size(qkv, inputs.query), .over_positions = {}},
          .key = {.over_size = cast_over_size(qkv, inputs.key), .over_positions = {}},
          .value = {.over_size = {}, .over_positions = cast_over_positions(qkv, inputs.value)},
          .scale_inv = make_no_scale(inputs.query)};
}

CodedHeads make_backward_operands(const KeptInputs& inputs, const Quantizer& qkv) {
  if (!casts_in_blocks(qkv)) return decode_heads(inputs, qkv.format());
  return {.query = cast_both(qkv, inputs.query),
          .key = cast_both(qkv, inputs.key),
          .value = {.over_size = cast_over_size(qkv, inputs.value), .over_positions = {}},
          .scale_inv = make_no_scale(inputs.query)};
}

CodedTensor cast_output_gradient(const at::Tensor& gradient,
                                 const std::shared_ptr<Quantizer>& d_o) {
  if (casts_in_blocks(*d_o)) return {cast_both(*d_o, gradient), make_no_scale(gradient)};
  ChunkedQuantizer cast(d_o);
  const at::Tensor values = cast.decode(gradient);
  return {{values, values}, cast.scale_inv()};
}

at::Tensor get_kept_output(const at::Tensor& kept, const at::Tensor& scale_inv,
                           const AttentionQuantizers& quantizers) {
  if (!scale_inv.defined()) return kept.to(at::kFloat);
  return ops::dequantize_fp8(kept, scale_inv, quantizers.o->format(), at::kFloat);
}

at::Tensor decoded(const at::Tensor& codes, FormatId format) {
  return ops::decode_fp8(codes, format, at::kFloat);
}

}  // namespace telens
