// Runs C++ modules on another framework's tensors.
#include <ATen/DLConvertor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/dlpack.h>
#include <c10/core/StreamGuard.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/modules/shared/main_grad.h"
#include "python/bindings/errors.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"
#include "python/bindings/module_adapter.h"

namespace telens::python {

namespace py = pybind11;

namespace {

// ---- tensors of another framework as views in LibTorch and back, over DLPack's table of C
// functions (https://dmlc.github.io/dlpack/latest/c_api.html, DLPackExchangeAPI): no copy and no
// capsule

// The GIL is held in every call.
class ForeignTensors {
 public:
  // tensor_class: the framework's tensor class. Throws UsageError if the class does not have such a
  // table, or if the table's major version differs from the one that LibTorch reads.
  explicit ForeignTensors(const pybind11::object& tensor_class);

  // Returns a view of the same memory and shares its ownership.
  at::Tensor view(pybind11::handle tensor) const;
  // Returns a view of the same memory, which must be contiguous, without the autograd graph.
  pybind11::object wrap(const at::Tensor& tensor) const;
  // Returns true if `view` matches the tensor's present memory, device, dtype and shape.
  bool is_view_of(const at::Tensor& view, pybind11::handle tensor) const;
  // Makes the framework's current stream LibTorch's current stream while the guard lives. No effect
  // on the CPU.
  std::optional<c10::StreamGuard> follow_stream(const at::Tensor& view) const;

 private:
  const DLPackExchangeAPI* table_ = nullptr;
};

constexpr const char* kTableAttribute = "__dlpack_c_exchange_api__";
constexpr const char* kTableCapsule = "dlpack_exchange_api";

void check_exchange(int status) {
  if (status != 0) throw py::error_already_set();
}

bool is_same_dtype(const DLDataType& a, const DLDataType& b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

ForeignTensors::ForeignTensors(const py::object& tensor_class) {
  const py::object capsule = py::getattr(tensor_class, kTableAttribute, py::none());
  const auto name = py::str(tensor_class).cast<std::string>();
  if (!PyCapsule_IsValid(capsule.ptr(), kTableCapsule)) {
    raise<UsageError>("{} has no {}; install a version of its framework that has", name,
                      kTableAttribute);
  }
  table_ =
      static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule.ptr(), kTableCapsule));
  const std::uint32_t major = table_->header.version.major;
  if (major != DLPACK_MAJOR_VERSION) {
    raise<UsageError>("{} speaks DLPack {}, and this torch DLPack {}; install versions that agree",
                      name, major, DLPACK_MAJOR_VERSION);
  }
}

at::Tensor ForeignTensors::view(py::handle tensor) const {
  DLManagedTensorVersioned* managed = nullptr;
  check_exchange(table_->managed_tensor_from_py_object_no_sync(tensor.ptr(), &managed));
  return at::fromDLPackVersioned(managed);
}

py::object ForeignTensors::wrap(const at::Tensor& tensor) const {
  void* object = nullptr;
  DLManagedTensorVersioned* managed = at::toDLPackVersioned(tensor.detach());
  check_exchange(table_->managed_tensor_to_py_object_no_sync(managed, &object));
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
}

bool ForeignTensors::is_view_of(const at::Tensor& view, py::handle tensor) const {
  if (table_->dltensor_from_py_object_no_sync == nullptr) return false;
  DLTensor now;
  check_exchange(table_->dltensor_from_py_object_no_sync(tensor.ptr(), &now));
  const at::IntArrayRef sizes(now.shape, now.ndim);
  return static_cast<const char*>(now.data) + now.byte_offset == view.const_data_ptr() &&
         view.sizes() == sizes && is_same_dtype(now.dtype, at::getDLDataType(view)) &&
         at::dlDeviceToTorchDevice(now.device.device_type, now.device.device_id) == view.device();
}

std::optional<c10::StreamGuard> ForeignTensors::follow_stream(const at::Tensor& view) const {
  const at::Device device = view.device();
  if (device.is_cpu()) return std::nullopt;
  void* stream = nullptr;
  const DLDevice known = at::torchDeviceToDLDevice(device);
  check_exchange(table_->current_work_stream(known.device_type, known.device_id, &stream));
  // For a stream that LibTorch did not create, it uses the stream's handle as its id.
  const auto number = static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(stream));
  return std::optional<c10::StreamGuard>(std::in_place,
                                         c10::Stream(c10::Stream::UNSAFE, device, number));
}

// ---- the backward of an autograd graph with a single node, without autograd's engine

using torch::autograd::Edge;
using torch::autograd::Node;

bool has_hooks(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty();
}

// Returns for each leaf the index of its gradient among the node's gradients. Returns std::nullopt
// if an edge of the node leads to anything else, or if two edges lead to the same leaf.
std::optional<std::vector<std::size_t>> find_places(const Node& node,
                                                    const std::vector<at::Tensor>& leaves) {
  std::vector<std::size_t> places;
  for (const at::Tensor& leaf : leaves) {
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(leaf);
    const auto is_leafs = [&](const Edge& edge) { return edge.function == accumulator; };
    const auto& edges = node.next_edges();
    const auto found = std::ranges::find_if(edges, is_leafs);
    if (!accumulator || found == edges.end()) return std::nullopt;
    places.push_back(static_cast<std::size_t>(found - edges.begin()));
  }
  const auto edges = std::ranges::count_if(node.next_edges(), &Edge::is_valid);
  if (edges != static_cast<std::ptrdiff_t>(leaves.size())) return std::nullopt;
  return places;
}

// Returns the gradients of `leaves` if exactly one node is between them and `root`, and `gradient`
// has root's shape and dtype. A leaf without a gradient gets an undefined tensor. The node's saved
// tensors are released. Returns std::nullopt for any other graph and does not change it: use
// torch::autograd::grad. The engine's bookkeeping costs more than the products of a small layer.
std::optional<std::vector<at::Tensor>> differentiate_single_node(
    const at::Tensor& root, const at::Tensor& gradient, const std::vector<at::Tensor>& leaves) {
  const auto node = root.grad_fn();  // torch 2.15 replaces shared_ptr by its own pointer type
  if (!node || node->num_inputs() != 1 || has_hooks(*node)) return std::nullopt;
  if (gradient.sizes() != root.sizes() || gradient.scalar_type() != root.scalar_type()) {
    return std::nullopt;
  }
  const auto places = find_places(*node, leaves);
  if (!places) return std::nullopt;
  const at::AutoGradMode no_graph(false);
  torch::autograd::variable_list found = (*node)({gradient});
  node->release_variables();
  torch::autograd::validate_outputs(node->next_edges(), found, [&](const std::string& text) {
    return node->name() + " returned " + text;
  });
  std::vector<at::Tensor> results;
  for (const std::size_t place : *places) results.push_back(found[place]);
  return results;
}

// ---- modules: each forward returns a graph that the framework's autograd runs

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
    std::size_t inputs = 0;  // the number of arguments among them
    py::tuple frozen;        // for each of the tensors: true if it requires no gradient
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

// Translates LibTorch's own exceptions, which pybind11 does not support.
template <typename Body>
auto with_translated_errors(const Body& body) {
  try {
    return body();
  } catch (...) {
    set_python_error();
    throw py::error_already_set();
  }
}

// Frameworks expect a single tensor as it is, and several tensors as a tuple.
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

// ---- the graph

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

// ---- the module

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
  // A graph of an earlier forward may still hold the leaf and read its requires_grad.
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

}  // namespace

// ---- Python

void bind_foreign_tensors(py::module_& module) {
  py::class_<ForeignTensors, std::shared_ptr<ForeignTensors>>(
      module, "ForeignTensors", "Tensors of another framework, over DLPack without a copy.")
      .def(py::init<const py::object&>(), py::arg("tensor_class"))
      .def("view",
           [](const ForeignTensors& tensors, py::handle from) { return tensors.view(from); })
      .def("wrap", [](const ForeignTensors& tensors, const at::Tensor& from) {
        return tensors.wrap(from.contiguous());
      });
}

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
