#include "core/quantization/layer_quantization.h"

#include "core/quantization/extra_state.h"

namespace telens {

const LayerQuantizers& LayerQuantization::quantizers(const std::shared_ptr<const Recipe>& recipe,
                                                     const at::Device& device) {
  if (recipe == recipe_ && device == device_) [[likely]] {
    return quantizers_;
  }
  DelayedScalingState* state = nullptr;
  if (const DelayedScaling* delayed = recipe->as_delayed_scaling()) {
    delayed_scaling_.prepare(*delayed, device);
    state = &delayed_scaling_;
  }
  for (int role = 0; role < kRoles; ++role) {
    quantizers_[static_cast<TensorRole>(role)] =
        recipe->make_quantizer(static_cast<TensorRole>(role), state);
  }
  recipe_ = recipe;
  device_ = device;
  return quantizers_;
}

at::Tensor LayerQuantization::extra_state() const { return bytes_of(delayed_scaling_); }

void LayerQuantization::set_extra_state(const at::Tensor& bytes) {
  delayed_scaling_ = state_from_bytes(bytes);
  recipe_ = nullptr;  // the quantizers refer to the tensors of the old state
}

}  // namespace telens
