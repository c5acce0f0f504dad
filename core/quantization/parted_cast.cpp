#include "core/quantization/parted_cast.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>

#include <utility>

#include "core/base/error.h"
#include "core/ops/optional_tensor.h"
#include "core/ops/quantize.h"
#include "core/quantization/current_scaling.h"

namespace telens {
namespace {

const CurrentScalingQuantizer& get_current_scaling(const Quantizer& quantizer) {
  const auto* current = dynamic_cast<const CurrentScalingQuantizer*>(&quantizer);
  if (current == nullptr) {
    raise<UsageError>("a tensor in parts is cast by delayed or current scaling, not by {}",
                      get_name(quantizer.mode()));
  }
  return *current;
}

void look_at_all(PartedCast& cast, const std::vector<at::Tensor>& tensors) {
  if (!cast.looks_first()) return;
  for (const at::Tensor& tensor : tensors) cast.look(tensor);
}

}  // namespace

// A known scale is kept as it is now: the end of a region changes the recipe's in place.
PartedCast::PartedCast(std::shared_ptr<const Quantizer> quantizer)
    : quantizer_(std::move(quantizer)), remembers_(true) {
  if (!casts()) return;
  if (const at::Tensor known = quantizer_->known_scale(); known.defined()) scale_ = known.clone();
}

PartedCast::PartedCast(std::shared_ptr<const Quantizer> quantizer, at::Tensor scale)
    : quantizer_(std::move(quantizer)), scale_(std::move(scale)), remembers_(false) {}

void PartedCast::look(const at::Tensor& part) {
  const at::Tensor amax = ops::amax(part);
  amax_ = amax_.defined() ? at::maximum(amax_, amax) : amax;  // maximum lets a NaN through
}

at::Tensor PartedCast::codes(const at::Tensor& part) {
  if (!scale_.defined()) {
    if (!amax_.defined()) look(part);
    scale_ = get_current_scaling(*quantizer_).scale_for(amax_).reshape({1});
  }
  return ops::quantize_fp8(part, scale_,
                           remembers_ ? ops::if_defined(quantizer_->running_amax()) : std::nullopt,
                           format());
}

at::Tensor PartedCast::values(const at::Tensor& part) {
  if (casts()) return ops::decode_fp8(codes(part), format(), at::kFloat);
  if (!scale_.defined()) scale_ = at::ones({1}, part.options().dtype(at::kFloat));
  return part.to(at::kFloat);
}

at::Tensor PartedCast::rounded(const at::Tensor& part, at::ScalarType dtype) {
  if (!casts()) return part.to(dtype);
  const at::Tensor made = codes(part);
  return ops::dequantize_fp8(made, scale_inv(), format(), dtype);
}

std::vector<at::Tensor> cast_together(PartedCast& cast, const std::vector<at::Tensor>& tensors) {
  look_at_all(cast, tensors);
  std::vector<at::Tensor> codes;
  for (const at::Tensor& tensor : tensors) codes.push_back(cast.codes(tensor));
  return codes;
}

std::vector<at::Tensor> rounded_together(PartedCast& cast, const std::vector<at::Tensor>& tensors,
                                         const std::vector<at::ScalarType>& dtypes) {
  look_at_all(cast, tensors);
  std::vector<at::Tensor> made;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    made.push_back(cast.rounded(tensors[i], dtypes[i]));
  }
  return made;
}

}  // namespace telens
