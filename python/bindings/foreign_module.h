// Runs a C++ module on another framework's tensors. Each forward returns a graph that the
// framework's autograd runs.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "python/bindings/foreign_tensors.h"
#include "python/bindings/module_adapter.h"

namespace telens::python {

// The graph from a forward's outputs to its inputs. Runs once.
class ForeignGraph {
 public:
  // main_grads: None, or a function that the backward calls. It returns a tuple with, for each
  // source, the foreign tensor to which the gradient is added (fuse_wgrad_accumulation) or None.
  ForeignGraph(std::shared_ptr<ForeignTensors> tensors, std::vector<at::Tensor> sources,
               std::vector<at::Tensor> outputs, py::object main_grads);

  // gradients: a foreign tensor or None for each output. Returns a foreign tensor for each source,
  // as a tuple if there are several. An entry is None if the source does not require a gradient or
  // its gradient was added to a main_grad.
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
    py::object main_grads;  // see ForeignGraph
  };
  // Returns (output, ForeignGraph). The output is a foreign tensor or a tuple of tensors. The graph
  // is None if `differentiable` is false or no source requires a gradient.
  std::pair<py::object, py::object> forward(const Call& call);

 private:
  void bind(std::size_t index, py::handle parameter, bool asks_gradient);

  std::shared_ptr<ModuleAdapter> adapter_;
  std::shared_ptr<ForeignTensors> tensors_;
  std::vector<at::Tensor> parameters_;  // views, autograd's leaves
};

}  // namespace telens::python
