// One linear layer's work, with its three GEMMs, quantizers, weight cache and hook points.
// Linear, LayerNormLinear, each half of LayerNormMLP and each GEMM of GroupedLinear own one.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/hook_points.h"
#include "core/modules/fused_cast.h"
#include "core/modules/module.h"
#include "core/modules/parameter_options.h"
#include "core/modules/prepared_tensor.h"
#include "core/quantization/layer_quantization.h"

namespace telens {

struct LinearCall {
  std::optional<bool> is_first_microbatch;
  bool fp8_output = false;  // the output is rounded to FP8 values
  bool fp8_grad = false;    // the input's gradient is rounded to FP8 values
  // wgrad is added to the weight's main_grad (main_grad.h); in a first micro-batch it replaces it.
  bool accumulates_wgrad = false;
  bool training = true;  // the module's mode (torch::nn::Module::is_training)
  // For what the output goes into, if its backward can cast; nullptr: it cannot.
  c10::intrusive_ptr<GradientCast> gradient_cast = {};
};

// An activation that is yet to be made.
struct ActivationSource {
  at::IntArrayRef sizes;
  const at::Tensor& like;  // has the activation's dtype and device
  MakeActivation make;
};

class TELENS_EXPORT LinearOperation {
 public:
  // `kind`: what messages call a layer without a name.
  explicit LinearOperation(std::string name = {}, std::string kind = "Linear");

  // input [..., in], weight [out, in], bias [out] or undefined -> [..., out], in torch.autocast's
  // dtype where that is on, else in the input's. Differentiable once in all three. Runs in FP8
  // inside fp8_autocast. Throws ShapeError naming layer and tensor. An input without elements is
  // shown to no feature, and takes no GEMM.
  at::Tensor operator()(const at::Tensor& input, const Weight& weight, const at::Tensor& bias,
                        const LinearCall& call = {});

  // The same for an activation of torch.autocast's dtype that its source makes: in FP8 where nobody
  // needs it otherwise.
  at::Tensor operator()(const ActivationSource& input, const Weight& weight, const at::Tensor& bias,
                        const LinearCall& call = {});

  LayerHooks& hooks() { return state_->hooks; }

  // Hands the group of the options and its size, which is settled, to its calls.
  void set_tensor_parallel(const ParameterOptions& options) {
    state_->hooks.set_tensor_parallel(options.tp_group, options.tp_size);
  }

  // Its amax history and scales are part of a module's.
  void join(const std::shared_ptr<ModuleWindows>& windows) {
    state_->quantization = std::make_shared<LayerQuantization>(windows);
  }
  // Amax history and scales, as bytes for state_dict.
  LayerQuantization& quantization() { return *state_->quantization; }
  const LayerQuantization& quantization() const { return *state_->quantization; }

  // What forward and backward share; a backward may outlive its module.
  struct State {
    std::string kind;
    LayerHooks hooks;
    std::shared_ptr<LayerQuantization> quantization = std::make_shared<LayerQuantization>();
    std::optional<PreparedTensor> cached_weight;  // of the running minibatch
    std::uint32_t cached_modifications = 0;       // RoutingPlan::modify bits it was made under
    std::shared_ptr<const Recipe> cached_recipe;  // and the recipe; nullptr: high precision
    std::shared_ptr<const Quantizer> cached_quantizer;  // that made it, where no feature did
    bool ran_quantized = false;                         // the newest forward did
    bool has_trained = false;                           // a forward in training mode ran

    // For error messages: the layer's name, or what it is.
    const std::string& name() const;
  };

 private:
  std::shared_ptr<State> state_;
};

}  // namespace telens
