// One linear layer: its three GEMMs, quantizers, weight cache and hook points. Linear,
// LayerNormLinear, each half of LayerNormMLP and each GEMM of GroupedLinear own one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/modules/layer/delayed_wgrads.h"
#include "core/modules/layer/linear_autograd.h"
#include "core/modules/layer/linear_parallel.h"
#include "core/quantization/handed_cast.h"
#include "core/quantization/layer_quantization.h"

namespace telens {

// An activation that is yet to be made.
struct ActivationSource {
  at::IntArrayRef sizes;
  const at::Tensor& like;  // has the activation's dtype and device
  MakeActivation make;
};

// Copies are the same layer.
class TELENS_EXPORT LinearLayer {
 public:
  // `kind`: what messages call a layer without a name.
  explicit LinearLayer(std::string name = {}, std::string kind = "Linear");

  // input [..., in], weight [out, in], bias [out] or undefined -> [..., out], in torch.autocast's
  // dtype where that is on, else in the input's. Differentiable once in all three. Runs in FP8
  // inside fp8_autocast. Throws ShapeError naming layer and tensor. An input without elements is
  // shown to no feature, and takes no GEMM. Of a divided layer all sizes are this rank's.
  at::Tensor operator()(const at::Tensor& input, const Weight& weight, const at::Tensor& bias,
                        const LinearCall& call = {});

  // The two halves of a call, for a caller that has other work between them or does the second one
  // itself: the checks, of an input of `like`'s dtype and device and of these sizes, which settle
  // how it runs; and the run, with the input in the layer's activation dtype.
  ForwardContext begin(at::IntArrayRef sizes, const at::Tensor& like, const Weight& weight,
                       const LinearCall& call);
  at::Tensor run(ForwardContext context, const at::Tensor& input, const Weight& weight,
                 const at::Tensor& bias, const LinearCall& call);

  // The arguments of a run, for a function of autograd that runs other layers too. Refers to its
  // arguments. asks_gradient: of the input, the weight or the bias.
  LinearArguments prepare(ForwardContext context, const at::Tensor& input, const Weight& weight,
                          const at::Tensor& bias, const LinearCall& call, bool asks_gradient);

  // The same for an activation of torch.autocast's dtype that its source makes: in FP8 where its
  // other uses allow it.
  at::Tensor operator()(const ActivationSource& input, const Weight& weight, const at::Tensor& bias,
                        const LinearCall& call = {});

  // Its name, or what messages call it.
  const std::string& name() const;
  LayerHooks& hooks();

  // How the layer is divided, by which it also hands group and size to its calls. Before the first
  // forward.
  void set_parallel(LinearParallel parallel);
  const LinearParallel& parallel() const;
  // The group, where it comes later. Throws UsageError for one of another size where the layer is
  // divided.
  void set_tensor_parallel_group(const ProcessGroupPtr& group);

  // Gradients of the weight that wait (delay_wgrad_compute).
  DelayedWgrads& delayed_wgrads();
  // Makes those of the oldest backward, and hands them on; false: none.
  bool run_delayed_wgrad(const std::function<void(const DelayedWgrad&)>& take);

  // The input, or the gradient of the output, comes as values that another layer has cast: under a
  // recipe with fp8_mha its codes are those. nullptr: the layer casts it.
  void take_input_cast(std::shared_ptr<const HandedCast> cast);
  void take_gradient_cast(std::shared_ptr<const HandedCast> cast);

  // Makes its amax history and scales part of a module's.
  void join(const std::shared_ptr<ModuleWindows>& windows);
  // Amax history and scales, as bytes for state_dict.
  LayerQuantization& quantization();
  const LayerQuantization& quantization() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

// For a norm's result that is returned as well: gathers it along the sequence, for the layer and
// for the caller, whose gradients are added before they are scattered.
at::Tensor gather_normalized(const at::Tensor& normalized, const LinearLayer& layer,
                             LinearCall& call);

}  // namespace telens
