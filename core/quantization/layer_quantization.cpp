#include "core/quantization/layer_quantization.h"

#include <utility>

#include "core/quantization/extra_state.h"

namespace telens {

const LayerQuantizers& LayerQuantization::quantizers(const std::shared_ptr<const Recipe>& recipe,
                                                     const at::Device& device, bool collects_amax,
                                                     std::string_view layer) {
  if (recipe != recipe_ || device != device_) [[unlikely]] {
    make_quantizers(recipe, device, layer);
  }
  return collects_amax ? quantizers_ : evaluation_quantizers_;
}

void LayerQuantization::make_quantizers(const std::shared_ptr<const Recipe>& recipe,
                                        const at::Device& device, std::string_view layer) {
  DelayedScalingState* state = nullptr;
  if (const DelayedScaling* delayed = recipe->as_delayed_scaling()) {
    delayed_scaling_.prepare(*delayed, device);
    state = &delayed_scaling_;
  }
  // A custom recipe's factory may throw: then the layer keeps what it had, as a whole.
  LayerQuantizers training;
  LayerQuantizers evaluation;
  for (int index = 0; index < kRoles; ++index) {
    const auto role = static_cast<TensorRole>(index);
    training[role] = recipe->make_quantizer_for({role, module_type_, layer}, state);
    if (const auto& group = amax_groups_[static_cast<std::size_t>(index)];
        group && training[role]) {
      training[role]->reduce_amax_over(group);
    }
    const at::Tensor scale = training[role] ? training[role]->known_scale() : at::Tensor();
    evaluation[role] = scale.defined() ? training[role]->frozen_at(scale) : training[role];
  }
  quantizers_ = std::move(training);
  evaluation_quantizers_ = std::move(evaluation);
  recipe_ = recipe;
  device_ = device;
}

void LayerQuantization::reduce_amaxes_over(TensorRole role, ProcessGroupPtr group) {
  amax_groups_[static_cast<std::size_t>(role)] = std::move(group);
  recipe_ = nullptr;
}

at::Tensor LayerQuantization::extra_state() const { return get_bytes(delayed_scaling_); }

void LayerQuantization::set_extra_state(const at::Tensor& bytes) {
  delayed_scaling_.assign(state_from_bytes(bytes));
  recipe_ = nullptr;  // the quantizers refer to the tensors of the old state
}

}  // namespace telens
