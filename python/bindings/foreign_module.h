// A C++ module whose tensors are another framework's, and the graph of one of its forwards, which
// that framework's autograd runs.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "python/bindings/foreign_tensors.h"
#include "python/bindings/module_adapter.h"

namespace telens::python {

// From the outputs of one forward to the tensors that went in. Run once.
class ForeignGraph {
 public:
  ForeignGraph(std::shared_ptr<ForeignTensors> tensors, std::vector<at::Tensor> sources,
               std::vector<at::Tensor> outputs);

  // gradients: a foreign tensor or None for each output. main_grads: for each source a foreign
  // tensor to which its gradient is added (fuse_wgrad_accumulation), or None; () is none at all.
  // Returns a foreign tensor for each source; None for one that asks for no gradient, or got it
  // added.
  py::tuple backward(const py::tuple& gradients, const py::tuple& main_grads);

 private:
  std::shared_ptr<ForeignTensors> tensors_;
  std::vector<at::Tensor> sources_;
  std::vector<at::Tensor> outputs_;
};

class ForeignModule {
 public:
  ForeignModule(std::shared_ptr<ModuleAdapter> adapter, std::shared_ptr<ForeignTensors> tensors);

  ModuleAdapter& adapter() { return *adapter_; }

  // What a forward is made of; tensors are foreign.
  struct Call {
    py::tuple inputs;      // the first arguments of the C++ forward
    py::tuple parameters;  // as many as the module has; None for one that it does without
    py::tuple frozen;      // whether each of those two rows of tensors asks for no gradient
    py::dict options;      // further arguments, by name
    bool training = true;
  };
  // (outputs, ForeignGraph); None in place of the graph where `differentiable` is false or nothing
  // asks for a gradient.
  std::pair<py::tuple, py::object> forward(const Call& call, bool differentiable);

 private:
  void bind(std::size_t index, py::handle parameter, bool asks_gradient);

  std::shared_ptr<ModuleAdapter> adapter_;
  std::shared_ptr<ForeignTensors> tensors_;
  std::vector<at::Tensor> parameters_;  // views, autograd's leaves
};

}  // namespace telens::python
