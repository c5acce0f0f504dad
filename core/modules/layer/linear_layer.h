// One linear layer: its three GEMMs, quantizers, weight cache and hook points. Linear,
// LayerNormLinear, each half of LayerNormMLP and each GEMM of GroupedLinear have one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/modules/layer/delayed_wgrads.h"
#include "core/modules/layer/linear_autograd.h"
#include "core/modules/layer/linear_parallel.h"
#include "core/quantization/layer_quantization.h"
#include "core/quantization/shared_scale.h"

namespace telens {

// A deferred activation; its producer may quantize it directly.
struct ActivationSource {
  at::IntArrayRef sizes;
  const at::Tensor& like;  // provides the activation's dtype and device
  MakeActivation make;
};

// Copies share the layer.
class TELENS_EXPORT LinearLayer {
 public:
  // `kind`: used in messages about an unnamed layer.
  explicit LinearLayer(std::string name = {}, std::string kind = "Linear");

  // input [..., in], weight [out, in], bias [out] or undefined -> [..., out], in torch.autocast's
  // dtype if it is enabled, else in the input's. Differentiable once in all three. Runs in FP8
  // inside fp8_autocast. Throws ShapeError naming layer and tensor. An empty input runs no GEMM and
  // is not shown to features. The sizes of a divided layer are this rank's.
  at::Tensor operator()(const at::Tensor& input, const Weight& weight, const at::Tensor& bias,
                        const LinearCall& call = {});

  // The two halves of operator(), for callers that run other work between them or replace the
  // second. begin() checks an input of these sizes and of `like`'s dtype and device, and decides
  // how it runs. run() requires the input in the layer's activation dtype.
  ForwardContext begin(at::IntArrayRef sizes, const at::Tensor& like, const Weight& weight,
                       const LinearCall& call);
  at::Tensor run(ForwardContext context, const at::Tensor& input, const Weight& weight,
                 const at::Tensor& bias, const LinearCall& call);

  // Returns the arguments of a run, for an autograd function that contains several layers. Refers
  // to its arguments. asks_gradient: input, weight or bias requires a gradient.
  LinearArguments prepare(ForwardContext context, const at::Tensor& input, const Weight& weight,
                          const at::Tensor& bias, const LinearCall& call, bool asks_gradient);

  // Runs a deferred activation in torch.autocast's dtype. Its producer quantizes it if no other use
  // needs the values.
  at::Tensor operator()(const ActivationSource& input, const Weight& weight, const at::Tensor& bias,
                        const LinearCall& call = {});

  // Returns the name for messages.
  const std::string& name() const;
  LayerHooks& hooks();

  // Sets how the layer is divided; also the group and size of its hook calls. Call before the first
  // forward.
  void set_parallel(LinearParallel parallel);
  const LinearParallel& parallel() const;
  // Sets the group after construction. Throws UsageError if the layer is divided among another
  // number of ranks.
  void set_tensor_parallel_group(const ProcessGroupPtr& group);

  // The pending weight gradients (delay_wgrad_compute).
  DelayedWgrads& delayed_wgrads();
  // Computes the wgrads of the oldest pending backward and passes each to `take`. Returns false if
  // none is pending.
  bool run_delayed_wgrad(const std::function<void(const DelayedWgrad&)>& take);

  // The scale with which another layer has rounded the input or the output gradient: a recipe with
  // fp8_mha then quantizes with this scale. nullptr if there is none.
  void set_input_scale(std::shared_ptr<const SharedScale> cast);
  void set_gradient_scale(std::shared_ptr<const SharedScale> cast);

  // Stores the layer's amax history and scales in a module's windows.
  void join(const std::shared_ptr<ModuleWindows>& windows);
  // Amax history, scales and quantizers.
  LayerQuantization& quantization();
  const LayerQuantization& quantization() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

// Gathers a norm's output along the sequence, for the layer and for the caller that also returns
// it. Their gradients are added before they are scattered.
at::Tensor gather_normalized(const at::Tensor& normalized, const LinearLayer& layer,
                             LinearCall& call);

}  // namespace telens
