#include "python/bindings/foreign_module.h"

#include <ATen/core/grad_mode.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/python_variable.h>

#include <utility>

#include "core/base/error.h"
#include "core/modules/shared/main_grad.h"
#include "python/bindings/errors.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"
#include "python/bindings/single_node_graph.h"

namespace telens::python {

namespace {

// pybind11 knows nothing of LibTorch's own exceptions.
template <typename Body>
auto with_translated_errors(const Body& body) {
  try {
    return body();
  } catch (...) {
    set_python_error();
    throw py::error_already_set();
  }
}

// Frameworks take a single tensor by itself, and several as a tuple.
py::object unpack_single(py::tuple tensors) {
  return tensors.size() == 1 ? py::object(tensors[0]) : std::move(tensors);
}

bool is_true(const py::tuple& flags, std::size_t index) {
  return PyTuple_GET_ITEM(flags.ptr(), static_cast<Py_ssize_t>(index)) == Py_True;
}

std::vector<at::Tensor> differentiate(const std::vector<at::Tensor>& roots,
                                      const std::vector<at::Tensor>& leaves,
                                      const std::vector<at::Tensor>& incoming) {
  if (roots.size() == 1) {
    auto found = differentiate_single_node(roots.front(), incoming.front(), leaves);
    if (found) return *std::move(found);
  }
  return torch::autograd::grad(roots, leaves, incoming, /*retain_graph=*/false,
                               /*create_graph=*/false, /*allow_unused=*/true);
}

}  // namespace

// ---------------------------------------------------------------------- the graph

ForeignGraph::ForeignGraph(std::shared_ptr<ForeignTensors> tensors, std::vector<at::Tensor> sources,
                           std::vector<at::Tensor> outputs, py::object main_grads)
    : tensors_(std::move(tensors)),
      sources_(std::move(sources)),
      outputs_(std::move(outputs)),
      main_grads_(std::move(main_grads)) {}

py::object ForeignGraph::backward(const py::tuple& gradients) {
  const py::tuple main_grads = main_grads_.is_none() ? py::tuple() : py::tuple(main_grads_());
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> incoming;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const py::object gradient = gradients[i];
    if (gradient.is_none() || !outputs_[i].requires_grad()) continue;
    roots.push_back(outputs_[i]);
    incoming.push_back(tensors_->view(gradient));
  }
  std::vector<at::Tensor> leaves;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (!sources_[i].requires_grad()) continue;
    leaves.push_back(sources_[i]);
    if (i < main_grads.size() && !main_grads[i].is_none()) {
      set_main_grad(sources_[i], tensors_->view(main_grads[i]));
    }
  }
  std::vector<at::Tensor> results(leaves.size());
  if (!roots.empty()) {
    const auto stream = tensors_->follow_stream(roots.front());
    const WithoutGil no_gil;
    results = differentiate(roots, leaves, incoming);
    for (at::Tensor& result : results) {
      if (result.defined()) result = result.contiguous();
    }
  }
  outputs_.clear();
  py::tuple out(sources_.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const at::Tensor result = sources_[i].requires_grad() ? results[next++] : at::Tensor();
    out[i] = result.defined() ? tensors_->wrap(result) : py::none();
  }
  return unpack_single(std::move(out));
}

// ---------------------------------------------------------------------- the module

ForeignModule::ForeignModule(std::shared_ptr<ModuleAdapter> adapter,
                             std::shared_ptr<ForeignTensors> tensors)
    : adapter_(std::move(adapter)),
      tensors_(std::move(tensors)),
      parameters_(adapter_->parameters().size()) {}

void ForeignModule::bind(std::size_t index, py::handle parameter, bool asks_gradient) {
  at::Tensor& bound = parameters_[index];
  if (parameter.is_none()) {
    bound = at::Tensor();
    return;
  }
  // A graph of an earlier forward may still hold the leaf, and asks it whether it wants gradients.
  if (!bound.defined() || bound.requires_grad() != asks_gradient ||
      !tensors_->is_view_of(bound, parameter)) {
    bound = tensors_->view(parameter).set_requires_grad(asks_gradient);
  }
}

std::pair<py::object, py::object> ForeignModule::forward(const Call& call) {
  std::vector<at::Tensor> sources;
  py::tuple arguments(call.inputs);
  bool asks_gradient = false;
  for (std::size_t i = 0; i < call.inputs; ++i) {
    const bool asks = call.differentiable && !is_true(call.frozen, i);
    asks_gradient |= asks;
    sources.push_back(tensors_->view(call.tensors[i]).set_requires_grad(asks));
    arguments[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(sources.back()));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool asks = call.differentiable && !is_true(call.frozen, call.inputs + i);
    asks_gradient |= asks;
    bind(i, call.tensors[call.inputs + i], asks);
    if (parameters_[i].defined()) sources.push_back(parameters_[i]);
  }
  const auto stream = tensors_->follow_stream(sources.front());
  const at::AutoGradMode grad_mode(asks_gradient);
  Outputs outputs = adapter_->run(parameters_, call.training, arguments.ptr(), call.options.ptr());
  py::tuple wrapped(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    wrapped[i] = tensors_->wrap(outputs[i].contiguous());
  }
  py::object result = unpack_single(std::move(wrapped));
  if (!asks_gradient) return {std::move(result), py::none()};
  auto graph = std::make_shared<ForeignGraph>(tensors_, std::move(sources), std::move(outputs),
                                              call.main_grads);
  return {std::move(result), py::cast(std::move(graph))};
}

// ---------------------------------------------------------------------- Python

void bind_foreign_module(py::module_& module) {
  py::class_<ForeignGraph, std::shared_ptr<ForeignGraph>>(
      module, "ForeignGraph",
      "The state that one forward of a ForeignModule keeps for its backward.")
      .def(
          "backward",
          [](ForeignGraph& graph, const py::tuple& gradients) {
            return with_translated_errors([&] { return graph.backward(gradients); });
          },
          "A gradient for each tensor that went in.");
  py::class_<ForeignModule>(module, "ForeignModule",
                            "A C++ module whose tensors are another framework's.")
      .def(py::init<std::shared_ptr<ModuleAdapter>, std::shared_ptr<ForeignTensors>>(),
           py::arg("adapter"), py::arg("tensors"))
      .def(
          "forward",
          [](ForeignModule& self, const py::tuple& tensors, std::size_t inputs,
             const py::tuple& frozen, const py::dict& options, bool training, bool differentiable,
             const py::object& main_grads) {
            return with_translated_errors([&] {
              return self.forward(
                  {tensors, inputs, frozen, options, training, differentiable, main_grads});
            });
          },
          "(tensors, inputs, frozen, options, training, differentiable, main_grads) -> "
          "(output, graph)");
}

}  // namespace telens::python
