#include "core/quantization/parted_cast.h"

#include <ATen/ops/maximum.h>

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

}  // namespace

// A known scale is kept as it is now: the end of a region changes the recipe's in place.
PartedCast::PartedCast(std::shared_ptr<const Quantizer> quantizer)
    : quantizer_(std::move(quantizer)) {
  if (const at::Tensor known = quantizer_->known_scale(); known.defined()) scale_ = known.clone();
}

void PartedCast::look(const at::Tensor& part) {
  const at::Tensor amax = ops::amax(part);
  amax_ = amax_.defined() ? at::maximum(amax_, amax) : amax;  // maximum lets a NaN through
}

at::Tensor PartedCast::codes(const at::Tensor& part) {
  if (!scale_.defined()) {
    if (!amax_.defined()) look(part);
    scale_ = get_current_scaling(*quantizer_).scale_for(amax_).reshape({1});
  }
  return ops::quantize_fp8(part, scale_, ops::if_defined(quantizer_->running_amax()), format());
}

std::vector<at::Tensor> cast_together(PartedCast& cast, const std::vector<at::Tensor>& tensors) {
  if (cast.looks_first()) {
    for (const at::Tensor& tensor : tensors) cast.look(tensor);
  }
  std::vector<at::Tensor> codes;
  for (const at::Tensor& tensor : tensors) codes.push_back(cast.codes(tensor));
  return codes;
}

}  // namespace telens
