#include "core/quantization/delayed_scaling.h"

#include <ATen/ops/maximum.h>

#include <utility>

#include "core/ops/quantize.h"
#include "core/quantization/tensor_scaling.h"

namespace telens {
void DelayedScalingState::prepare(const DelayedScaling& recipe, const at::Device& device) {
  if (recipe.amax_history_len < 1) {
    raise<UsageError>("DelayedScaling: amax_history_len is {}; expected at least 1",
                      recipe.amax_history_len);
  }
  if (recipe.interval < 1) {
    raise<UsageError>("DelayedScaling: interval is {}; expected at least 1", recipe.interval);
  }
  module_->prepare(recipe.amax_history_len, device);
  take_views();
}

void DelayedScalingState::take_views() {
  for (const bool backward : {false, true}) module_->view(backward, gemm_, window(backward));
}

void DelayedScalingState::assign(const DelayedScalingState& other) {
  windows_ = {};
  const AmaxWindow& given = other.window(false);
  if (!given.defined() && module_->gemms() == 1) module_->forget();
  if (!given.defined() && !module_->joined(false).defined()) return;
  if (given.defined()) {
    const AmaxWindow& present = module_->joined(false);
    module_->prepare(given.amax_history.size(0),
                     present.defined() ? present.scale.device() : given.scale.device());
  }
  take_views();
  for (const bool backward : {false, true}) {
    const AmaxWindow& from = other.window(backward);
    if (from.defined()) {
      window(backward).scale.copy_(from.scale);
      window(backward).amax_history.copy_(from.amax_history);
      window(backward).updates->store(from.updates->load());
      window(backward).rows_since_update = from.rows_since_update;
    } else {
      window(backward).scale.fill_(1);
      window(backward).amax_history.zero_();
      window(backward).rows_since_update = 0;
    }
  }
  if (!given.defined()) windows_ = {};
}

at::Tensor DelayedScalingState::scale(TensorRole role) const {
  return window(is_backward(role)).scale.narrow(0, slot(role), 1);
}

at::Tensor DelayedScalingState::running_amax(TensorRole role) const {
  return window(is_backward(role)).amax_history.select(0, 0).narrow(0, slot(role), 1);
}

DelayedScalingQuantizer::DelayedScalingQuantizer(FormatId format, at::Tensor scale, at::Tensor amax,
                                                 Usage usage, Updates updates)
    : Quantizer(format, usage),
      scale_(std::move(scale)),
      amax_(std::move(amax)),
      updates_(std::move(updates)) {}

QuantizedTensor DelayedScalingQuantizer::quantize(const at::Tensor& x, Usage usage) const {
  return quantize_with_scale(x, {scale_, amax_, format()}, usage);
}

void DelayedScalingQuantizer::quantize_into(const at::Tensor& x, QuantizedTensor& out) const {
  quantize_with_scale_into(x, {scale_, amax_, format()}, out);
}

void DelayedScalingQuantizer::calibrate(const at::Tensor& x) const {
  if (amax_.defined()) {
    amax_.copy_(at::maximum(amax_, ops::amax(x)));  // maximum lets a NaN through
  }
}

std::optional<std::int64_t> DelayedScalingQuantizer::history_updates() const {
  if (!updates_) return std::nullopt;
  return updates_->load(std::memory_order_relaxed);
}

std::shared_ptr<Quantizer> DelayedScalingQuantizer::copy() const {
  return std::make_shared<DelayedScalingQuantizer>(*this);
}

bool DelayedScalingQuantizer::quantizes_as(const Quantizer& other) const {
  if (!Quantizer::quantizes_as(other)) return false;
  const auto& same = static_cast<const DelayedScalingQuantizer&>(other);
  const bool follow_histories = updates_ && same.updates_;
  return follow_histories || scale_.is_alias_of(same.scale_);
}

std::shared_ptr<Quantizer> DelayedScalingQuantizer::frozen_at(at::Tensor scale) const {
  auto frozen = std::make_shared<DelayedScalingQuantizer>(format(), std::move(scale), at::Tensor(),
                                                          usage(), updates_);
  frozen->reduce_amax_over(amax_reduction_group());  // for features, which scale anew
  return frozen;
}

std::shared_ptr<Quantizer> DelayedScaling::make_quantizer(TensorRole role,
                                                          DelayedScalingState* state) const {
  if (state == nullptr) {
    raise<UsageError>("DelayedScaling: a quantizer needs a layer's amax history");
  }
  return std::make_shared<DelayedScalingQuantizer>(get_format(role), state->scale(role),
                                                   state->running_amax(role), Usage{},
                                                   state->window(is_backward(role)).updates);
}

}  // namespace telens
