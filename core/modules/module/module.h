// Base class of all modules: a torch::nn::Module whose tensors can be replaced from outside, whose
// forward has one struct of inputs, and which its parent calls through a replaceable function. The
// Python adapter requires nothing else.
#pragma once

#include <torch/nn/module.h>

#include <ATen/core/Tensor.h>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/distributed/process_group.h"
#include "core/modules/layer/linear_layer.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

class LayerQuantization;
struct DelayedWgrad;
struct ContextParallel;

// A module's results: usually one tensor; more if an option requests them (return_bias,
// return_layernorm_output), in Transformer Engine's order.
using Outputs = std::vector<at::Tensor>;

class TELENS_EXPORT Module : public torch::nn::Module {
 public:
  // Replaces the parameter registered under `name` ("weight", "fc1_bias", ...): the module uses
  // `tensor` from now on. Throws UsageError that lists the module's names if `name` is not one of
  // them.
  void set_tensor(const std::string& name, at::Tensor tensor,
                  std::optional<QuantizedTensor> quantized = std::nullopt);

  // Returns true for the weights of GEMMs, which may be stored in low precision.
  bool is_gemm_weight(const std::string& name) const { return weight_slots_.contains(name); }

  // Returns how a parameter is divided among the ranks of the tensor-parallel group.
  ParameterPlacement placement(const std::string& name) const;

  // The entry `_extra_state` of state_dict: bytes (uint8, 1-D), or undefined if the module has no
  // such state. Restoring throws UsageError for bytes of another module; errors and warnings name
  // `key`, the entry in the checkpoint.
  virtual at::Tensor extra_state() const { return {}; }
  void set_extra_state(const at::Tensor& bytes, const std::string& key = "_extra_state") {
    load_extra_state(bytes, key);
  }

  // Returns this module's linear layers by GEMM, excluding layers of children.
  virtual std::vector<LinearLayer*> layers() { return {}; }

  // Returns the quantizers of this module's tensors, grouped by GEMM slots: of its layers or of an
  // attention.
  virtual std::vector<LayerQuantization*> quantizations();

  // Sets the group of tensor-parallel layers in this module and all children; its size is the
  // option tp_size.
  void set_tensor_parallel_group(const ProcessGroupPtr& group);

  // Computes the weight gradients of the oldest pending backward (delay_wgrad_compute), last layer
  // first, without children. Returns false if none is pending.
  bool backward_dw();
  // As above, but passes the gradients to `take` instead of the weights.
  bool make_delayed_wgrads(const std::function<void(const DelayedWgrad&)>& take);
  bool has_delayed_wgrads();
  // Discards pending gradients: all, or only those from one backward (0: the oldest).
  void drop_delayed_wgrads(std::optional<std::size_t> backward);

  // Sets how attention in this module and all children is divided along the sequence.
  virtual void set_context_parallel(const ContextParallel& parallel);

  // Sets the module's name in debug configurations; inner layers receive "<name>.<suffix>".
  virtual void set_debug_name(const std::string& name) {}

 protected:
  virtual void load_extra_state(const at::Tensor& bytes, const std::string& key);

  // Registers a tensor and remembers its slot.
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
// (name, pointer to member, doc) in the order of the Python arguments; so is a module's Options
// struct. Parents call children with operator(), not with forward().
template <typename InputsT>
class CallableModule : public Module {
 public:
  using Inputs = InputsT;
  using Function = std::function<Outputs(const Inputs&)>;

  virtual Outputs forward(const Inputs& inputs) = 0;

  Outputs operator()(const Inputs& inputs) {
    return override_ ? override_(inputs) : forward(inputs);
  }

  // For the adapter: the parent calls this instead of forward; nullptr restores forward.
  void set_override(Function function) { override_ = std::move(function); }

 private:
  Function override_;
};

// ---- a module's parameters, buffers and extra states by full name, like Python's state_dict

// Names are "layers.0.self_attention.proj.weight", "layers.0.self_attention.proj._extra_state", ...
// The tensors are the module's, detached; extra states are bytes on the CPU.
using StateDict = std::map<std::string, at::Tensor>;

TELENS_EXPORT StateDict state_dict(const torch::nn::Module& module);

// Copies values into the module's tensors. Throws UsageError for missing and unexpected names,
// ShapeError for other shapes; nothing has been copied then.
TELENS_EXPORT void load_state_dict(torch::nn::Module& module, const StateDict& state);

// ---- the linear layers of a module: their names and saved state

class NamedLayers {
 public:
  // `kind`: used in messages about an unnamed module. If the name is empty, a debug session assigns
  // one, with a number that all layers of the module share.
  NamedLayers(std::string kind, std::string name);

  // Creates the next layer, "<name><suffix>". Copies of the result share the layer.
  LinearLayer add(const std::string& suffix);

  void set_name(const std::string& name);

  // Returns the module's name or kind.
  const std::string& name() const { return name_.empty() ? kind_ : name_; }

  // Returns the extra states of all layers as one byte string; empty before the first forward under
  // delayed scaling.
  at::Tensor extra_state() const;
  // Restores extra_state(). Empty bytes reset the states. Throws UsageError if the bytes hold the
  // states of a different number of layers. `key`: the checkpoint's entry, for messages.
  void set_extra_state(const at::Tensor& bytes, const std::string& key);

 private:
  struct Layer {
    LinearLayer operation;
    std::string suffix;
  };

  std::string kind_;
  std::string name_;
  std::shared_ptr<ModuleWindows> windows_ = std::make_shared<ModuleWindows>();
  std::vector<Layer> layers_;
};

}  // namespace telens
