#include "hooks/engine/running_cast.h"

#include <ATen/ops/where.h>

#include <algorithm>

#include "core/quantization/current_scaling.h"
#include "core/quantization/quantized_tensor.h"
#include "hooks/engine/block_copies.h"

namespace telens::features {
namespace {

struct ShownCopy {
  const QuantizedTensor* tensor = nullptr;
  bool modified = false;  // by a feature
};

ShownCopy shown_copy(const InspectTensorCall& call) {
  const QuantizedTensor* first = quantized_or_null(call.rowwise);
  if (first != nullptr) return {first, call.rowwise_modified};
  return {quantized_or_null(call.columnwise), call.columnwise_modified};
}

}  // namespace

std::optional<RunningCast> running_cast(const InspectTensorCall& call) {
  const ShownCopy shown = shown_copy(call);
  if (shown.tensor == nullptr) return std::nullopt;
  const FormatId format = shown.tensor->format;
  if (const auto recipe = scheme(shown.tensor->mode).recipe) {
    const QuantizedTensor* first = quantized_or_null(call.rowwise);
    const QuantizedTensor* second = quantized_or_null(call.columnwise);
    return RunningCast{
        *recipe, format, first != nullptr && first->rowwise.defined(),
        second != nullptr && scheme(second->mode).recipe == recipe && second->columnwise.defined()};
  }
  const bool per_tensor =
      call.quantizer != nullptr && call.quantizer->mode() == ScalingMode::tensor;
  if (!per_tensor && !shown.modified) return std::nullopt;
  RunningCast running{RecipeId::fp8_current_scaling, format};
  if (per_tensor) {
    running.format = call.quantizer->format();
    if (call.quantizer->known_scale().defined()) running.recipe = RecipeId::fp8_delayed_scaling;
  }
  running.altered = shown.modified || format != running.format;
  running.altered_format = format;
  return running;
}

at::Tensor CastScales::of(const CastRequest& cast) {
  if (cast.altered) return behind_altered_copy();
  if (cast.recipe == RecipeId::fp8_delayed_scaling) return call_.quantizer->known_scale();
  const auto* running = dynamic_cast<const CurrentScalingQuantizer*>(call_.quantizer);
  if (running == nullptr) return current(cast.format);
  if (!running->amax_reduction_group()) return running->scale_for(x_);
  // A scale that ranks have made together is read off the copy: looking sends nothing.
  const QuantizedTensor* copy = shown_copy(call_).tensor;
  const bool is_of_format = copy != nullptr && copy->format == cast.format;
  return is_of_format ? behind_altered_copy() : current(cast.format);
}

at::Tensor CastScales::current(FormatId format) {
  const auto known = std::ranges::find(current_, format, &std::pair<FormatId, at::Tensor>::first);
  if (known != current_.end()) return known->second;
  return current_.emplace_back(format, CurrentScalingQuantizer(format).scale_for(x_)).second;
}

// A copy keeps the reciprocal of its scale, and the reciprocal of that may be the scale's neighbor,
// under which some codes would be others. So it is taken from the object that has the very scale,
// compared on the tensor's device, for which the host does not wait.
at::Tensor CastScales::behind_altered_copy() {
  const QuantizedTensor& copy = *shown_copy(call_).tensor;
  const at::Tensor& scale_inv =
      copy.rowwise.defined() ? copy.rowwise.scale_inv : copy.columnwise.scale_inv;
  at::Tensor scale = scale_inv.reciprocal();
  const auto take_where_it_is = [&](const at::Tensor& candidate) {
    scale = at::where(candidate.reciprocal().eq(scale_inv), candidate, scale);
  };
  if (call_.quantizer != nullptr && call_.quantizer->known_scale().defined()) {
    take_where_it_is(call_.quantizer->known_scale());
  }
  take_where_it_is(current(copy.format));
  return scale;
}

}  // namespace telens::features
