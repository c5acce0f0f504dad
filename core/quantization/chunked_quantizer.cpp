#include "core/quantization/chunked_quantizer.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>

#include <utility>

#include "core/base/error.h"
#include "core/ops/quantize.h"
#include "core/ops/tensor_utils.h"
#include "core/quantization/current_scaling.h"

namespace telens {
namespace {

const CurrentScalingQuantizer& get_current_scaling(const Quantizer& quantizer) {
  const auto* current = dynamic_cast<const CurrentScalingQuantizer*>(&quantizer);
  if (current == nullptr) {
    raise<UsageError>("a tensor in chunks requires delayed or current scaling; got {}",
                      get_name(quantizer.mode()));
  }
  return *current;
}

void observe_all(ChunkedQuantizer& quantizer, const std::vector<at::Tensor>& tensors) {
  if (!quantizer.needs_observation()) return;
  for (const at::Tensor& tensor : tensors) quantizer.observe(tensor);
}

}  // namespace

// Copies a known scale: the end of a region updates the recipe's scale in place.
ChunkedQuantizer::ChunkedQuantizer(std::shared_ptr<const Quantizer> quantizer)
    : quantizer_(std::move(quantizer)), records_amax_(true) {
  if (!quantizes()) return;
  if (const at::Tensor known = quantizer_->known_scale(); known.defined()) scale_ = known.clone();
}

ChunkedQuantizer::ChunkedQuantizer(std::shared_ptr<const Quantizer> quantizer, at::Tensor scale)
    : quantizer_(std::move(quantizer)), scale_(std::move(scale)), records_amax_(false) {}

void ChunkedQuantizer::observe(const at::Tensor& chunk) {
  const at::Tensor amax = ops::amax(chunk);
  amax_ = amax_.defined() ? at::maximum(amax_, amax) : amax;  // maximum propagates NaN
}

at::Tensor ChunkedQuantizer::quantize(const at::Tensor& chunk) {
  if (!scale_.defined()) {
    if (!amax_.defined()) observe(chunk);
    scale_ = get_current_scaling(*quantizer_).scale_for(amax_).reshape({1});
  }
  return ops::quantize_fp8(
      chunk, scale_, records_amax_ ? ops::if_defined(quantizer_->running_amax()) : std::nullopt,
      format());
}

at::Tensor ChunkedQuantizer::decode(const at::Tensor& chunk) {
  if (quantizes()) return ops::decode_fp8(quantize(chunk), format(), at::kFloat);
  if (!scale_.defined()) scale_ = at::ones({1}, chunk.options().dtype(at::kFloat));
  return chunk.to(at::kFloat);
}

at::Tensor ChunkedQuantizer::round(const at::Tensor& chunk, at::ScalarType dtype) {
  if (!quantizes()) return chunk.to(dtype);
  const at::Tensor made = quantize(chunk);
  return ops::dequantize_fp8(made, scale_inv(), format(), dtype);
}

std::vector<at::Tensor> quantize_together(ChunkedQuantizer& quantizer,
                                          const std::vector<at::Tensor>& tensors) {
  observe_all(quantizer, tensors);
  std::vector<at::Tensor> codes;
  for (const at::Tensor& tensor : tensors) codes.push_back(quantizer.quantize(tensor));
  return codes;
}

std::vector<at::Tensor> round_together(ChunkedQuantizer& quantizer,
                                       const std::vector<at::Tensor>& tensors,
                                       const std::vector<at::ScalarType>& dtypes) {
  observe_all(quantizer, tensors);
  std::vector<at::Tensor> made;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    made.push_back(quantizer.round(tensors[i], dtypes[i]));
  }
  return made;
}

}  // namespace telens
