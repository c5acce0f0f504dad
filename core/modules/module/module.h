// Base of all modules: a torch::nn::Module whose tensors can be replaced from outside, whose
// forward is one call with one struct of inputs, and whose parent calls it through a replaceable
// function. That is all that the Python adapter needs of a module.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/distributed/process_group.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

class LayerQuantization;
class LinearLayer;
struct DelayedWgrad;
struct ContextParallel;

// A module's results: one tensor for most; more where an option asks for them (return_bias,
// return_layernorm_output), in the order that Transformer Engine returns them.
using Outputs = std::vector<at::Tensor>;

class TELENS_EXPORT Module : public torch::nn::Module {
 public:
  // Replaces the parameter registered under `name` ("weight", "fc1_bias", ...): the
  // module computes with `tensor` from now on. Throws UsageError naming the module's own names if
  // there is no such tensor.
  void set_tensor(const std::string& name, at::Tensor tensor,
                  std::optional<QuantizedTensor> quantized = std::nullopt);

  // True for the weights of GEMMs, which may be stored in low precision.
  bool is_gemm_weight(const std::string& name) const { return weight_slots_.contains(name); }

  // How a parameter lies on the ranks of the tensor-parallel group.
  ParameterPlacement placement(const std::string& name) const;

  // The entry of state_dict under `_extra_state`: plain bytes (uint8, 1-D), or undefined if the
  // module has nothing of the kind. Restoring throws UsageError on bytes that are not its own.
  virtual at::Tensor extra_state() const { return {}; }
  virtual void set_extra_state(const at::Tensor& bytes);

  // Its own linear layers, GEMM by GEMM; those of children are theirs.
  virtual std::vector<LinearLayer*> layers() { return {}; }

  // The quantizers of its own tensors, in groups of the slots of one GEMM: those of its layers, or
  // an attention's.
  virtual std::vector<LayerQuantization*> quantizations();

  // The group of tensor-parallel layers, here and in all children; its size is the option tp_size.
  void set_tensor_parallel_group(const ProcessGroupPtr& group);

  // Makes the gradients of weights that the oldest backward left (delay_wgrad_compute), those of
  // its last layer first; children are asked by themselves. False where nothing waited.
  bool backward_dw();
  // As above, but the gradients go to `take` and not to the weights.
  bool make_delayed_wgrads(const std::function<void(const DelayedWgrad&)>& take);
  bool has_delayed_wgrads();
  // They are not made any more: all, or those of one backward, the oldest being number 0.
  void drop_delayed_wgrads(std::optional<std::size_t> backward);

  // How attention, here and in all children, is divided along the sequence.
  virtual void set_context_parallel(const ContextParallel& parallel);

  // The module's name in debug configurations; modules with layers inside pass on
  // "<name>.<suffix>" by the contract.
  virtual void set_debug_name(const std::string& name) {}

 protected:
  // Registers under the module's own name and remembers where the value is kept.
  void register_slot(std::string name, at::Tensor& slot, at::Tensor value);
  void register_weight(std::string name, Weight& slot, at::Tensor value);
  void place(const std::string& name, ParameterPlacement placement) {
    placements_[name] = placement;
  }

 private:
  std::map<std::string, at::Tensor*> tensor_slots_;
  std::map<std::string, Weight*> weight_slots_;
  std::map<std::string, ParameterPlacement> placements_;
};

// A module with a forward. InputsT is an aggregate with a static describe(visitor) that visits
// (name, pointer to member, doc) in the order of the Python arguments; a module's Options struct
// has one too. Parents call children with operator(), never with forward().
template <typename InputsT>
class CallableModule : public Module {
 public:
  using Inputs = InputsT;
  using Function = std::function<Outputs(const Inputs&)>;

  virtual Outputs forward(const Inputs& inputs) = 0;

  Outputs operator()(const Inputs& inputs) {
    return override_ ? override_(inputs) : forward(inputs);
  }

  // For the adapter: the parent calls this instead of forward (nullptr: forward again).
  void set_override(Function function) { override_ = std::move(function); }

 private:
  Function override_;
};

}  // namespace telens
