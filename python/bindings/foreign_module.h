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
  // main_grads: a function that the backward calls; it returns a tuple with, for each source, a
  // foreign tensor to which the gradient is added (fuse_wgrad_accumulation), or None. Or None:
  // none.
  ForeignGraph(std::shared_ptr<ForeignTensors> tensors, std::vector<at::Tensor> sources,
               std::vector<at::Tensor> outputs, py::object main_grads);

  // gradients: a foreign tensor or None for each output. Returns a foreign tensor for each source,
  // in a tuple where there are several; None for one that asks for no gradient, or got it added.
  py::object backward(const py::tuple& gradients);

 private:
  std::shared_ptr<ForeignTensors> tensors_;
  std::vector<at::Tensor> sources_;
  std::vector<at::Tensor> outputs_;
  py::object main_grads_;
};

class ForeignModule {
 public:
  ForeignModule(std::shared_ptr<ModuleAdapter> adapter, std::shared_ptr<ForeignTensors> tensors);

  ModuleAdapter& adapter() { return *adapter_; }

  // The arguments of a forward; tensors are foreign.
  struct Call {
    py::tuple tensors;       // the first arguments of the C++ forward, then a tensor, or None, for
                             // each parameter that the module has
    std::size_t inputs = 0;  // how many of them are arguments
    py::tuple frozen;        // for each of the tensors whether it asks for no gradient
    py::dict options;        // further arguments, by name
    bool training = true;
    bool differentiable = true;
    py::object main_grads;  // as ForeignGraph takes it
  };
  // (output, ForeignGraph): a foreign tensor, or a tuple of several; None in place of the graph
  // where `differentiable` is false or nothing asks for a gradient.
  std::pair<py::object, py::object> forward(const Call& call);

 private:
  void bind(std::size_t index, py::handle parameter, bool asks_gradient);

  std::shared_ptr<ModuleAdapter> adapter_;
  std::shared_ptr<ForeignTensors> tensors_;
  std::vector<at::Tensor> parameters_;  // views, autograd's leaves
};

}  // namespace telens::python
