#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/gemm/gemm.h"
#include "core/modules/attention/rotary_embedding.h"
#include "core/modules/attention/score_block.h"
#include "core/modules/layer/delayed_wgrads.h"
#include "core/modules/layer/linear_layer.h"
#include "core/modules/module_list.h"
#include "core/modules/shared/main_grad.h"
#include "core/ops/gemm.h"
#include "core/quantization/extra_state.h"
#include "python/bindings/errors.h"
#include "python/bindings/fields.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"
#include "python/bindings/module_adapter.h"
#include "python/bindings/quantizers.h"

namespace telens::python {

namespace py = pybind11;

namespace {

// ---- the present FP8 state of a module's layers

using AdapterClass = pybind11::class_<ModuleAdapter, std::shared_ptr<ModuleAdapter>>;

using Window = std::pair<at::Tensor, at::Tensor>;

// Returns (amax_history [length, slots], scale [slots]) of the layer's GEMMs without copying.
std::optional<Window> amax_window(ModuleAdapter& adapter, bool backward) {
  const std::vector<LayerQuantization*> gemms = adapter.module().quantizations();
  if (gemms.empty()) return std::nullopt;
  const AmaxWindow& window = gemms.front()->delayed_scaling().module().joined(backward);
  if (!window.defined()) return std::nullopt;
  return Window(window.amax_history, window.scale);
}

// The columns for one GEMM in the layer's amax window.
AmaxWindow part(const Window& all, std::size_t gemm, std::int64_t slots) {
  const std::int64_t first = static_cast<std::int64_t>(gemm) * slots;
  return {all.first.narrow(1, first, slots), all.second.narrow(0, first, slots)};
}

// Writes the values as one of our checkpoints, then restores that checkpoint.
void set_amax_windows(ModuleAdapter& adapter, const Window& forward, const Window& backward,
                      const std::string& key) {
  const std::vector<LayerQuantization*> gemms = adapter.module().quantizations();
  const auto source = [&](std::size_t gemm) {
    return gemms.size() == 1 ? key : fmt::format("{}, GEMM {}", key, gemm);
  };
  std::vector<at::Tensor> parts;
  for (std::size_t gemm = 0; gemm < gemms.size(); ++gemm) {
    DelayedScalingState state;
    state.window(false) = part(forward, gemm, kForwardRoles);
    state.window(true) = part(backward, gemm, kBackwardRoles);
    parts.push_back(get_bytes(state));
    state_from_bytes(parts.back(), source(gemm));  // throws before any GEMM changes
  }
  for (std::size_t gemm = 0; gemm < gemms.size(); ++gemm) {
    gemms[gemm]->set_extra_state(parts[gemm], source(gemm));
  }
}

std::shared_ptr<const Recipe> newest_recipe(ModuleAdapter& adapter) {
  const std::vector<LayerQuantization*> gemms = adapter.module().quantizations();
  return gemms.empty() ? nullptr : gemms.front()->recipe();
}

// In slot order; None for a tensor that the recipe keeps in high precision.
py::list quantizers(ModuleAdapter& adapter, bool backward) {
  py::list all;
  for (LayerQuantization* gemm : adapter.module().quantizations()) {
    if (gemm->recipe() == nullptr) continue;
    const LayerQuantizers& own = gemm->newest_quantizers();
    for (int index = 0; index < kRoles; ++index) {
      const auto role = static_cast<TensorRole>(index);
      if (is_backward(role) == backward) all.append(own_quantizer(own[role]));
    }
  }
  return all;
}

void bind_fp8_state(AdapterClass& adapter) {
  adapter
      .def_property_readonly(
          "num_gemms", [](ModuleAdapter& self) { return self.module().quantizations().size(); },
          "Groups of slots: the linear layers of the module itself, or an attention's tensors")
      .def("amax_window", &amax_window, py::arg("backward"),
           "(amax_history, scale) of delayed scaling; None before there are any.")
      .def("set_amax_windows", &set_amax_windows, py::arg("forward"), py::arg("backward"),
           py::arg("key") = "_extra_state",
           "Sets the values of the forward and the backward, each in the form that amax_window "
           "returns. Messages begin with the key.")
      .def(
          "newest_recipe",
          [](ModuleAdapter& self) { return std::const_pointer_cast<Recipe>(newest_recipe(self)); },
          "The recipe of the newest forward under one, or None.")
      .def("quantizers", &quantizers, py::arg("backward"),
           "Returns the quantizers of that recipe in slot order.");
}

// ---- gradients that are added to main_grad

py::object get_object(const at::Tensor& parameter) {
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(parameter));
}

// Transformer Engine's and Megatron's attributes:
//   main_grad                the buffer
//   get_main_grad()          returns it, for parameters marked __fsdp_param__
//   overwrite_main_grad      the product replaces its values
//   grad_added_to_main_grad  set to True if it exists; .grad is still filled because hooks that run
//                            after its accumulation reduce main_grad
class AttributeMainGrads final : public MainGradSource {
 public:
  MainGrad find(const at::Tensor& parameter) override {
    const WithGil gil;
    const py::object owner = get_object(parameter);
    if (py::hasattr(owner, "__fsdp_param__"))
      owner.attr("main_grad") = owner.attr("get_main_grad")();
    const py::object buffer = py::getattr(owner, "main_grad", py::none());
    if (!THPVariable_Check(buffer.ptr())) return {};
    return {
        .buffer = THPVariable_Unpack(buffer.ptr()),
        .overwrite = py::cast<bool>(py::getattr(owner, "overwrite_main_grad", py::bool_(false))),
        .wants_gradient = py::hasattr(owner, "grad_added_to_main_grad")};
  }

  void added(const at::Tensor& parameter) override {
    const WithGil gil;
    get_object(parameter).attr("grad_added_to_main_grad") = py::bool_(true);
  }
};

// ---- modules

// In the order of module_list.h; never destroyed, because adapters refer to them.
const std::vector<std::unique_ptr<ModuleType>>& module_types() {
  static const auto* types = [] {
    auto* made = new std::vector<std::unique_ptr<ModuleType>>;
    for_each_module([made]<typename M>(const char* name, const char* doc) {
      made->push_back(std::make_unique<TypedModuleType<M>>(name, doc));
    });
    return made;
  }();
  return *types;
}

using Handle = std::shared_ptr<ModuleAdapter>;

// forward(owner, args, kwargs), called once for every forward in Python: a plain C function, since
// pybind11's dispatch would cost as much as a small layer.
PyObject* call_adapter(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "expected (owner, args, kwargs)");
    return nullptr;
  }
  const auto* adapter = static_cast<const Handle*>(PyCapsule_GetPointer(capsule, nullptr));
  try {
    return (*adapter)->call(arguments[0], arguments[1], arguments[2]).release().ptr();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

// call_adapter bound to an adapter, which it keeps alive.
py::object make_call(const Handle& adapter) {
  static PyMethodDef definition{
      "forward", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call_adapter)),
      METH_FASTCALL, "Calls the C++ forward: (owner, args, kwargs)."};
  const py::capsule capsule(new Handle(adapter),
                            [](void* handle) { delete static_cast<Handle*>(handle); });
  PyObject* function = PyCFunction_NewEx(&definition, capsule.ptr(), nullptr);
  if (function == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(function);
}

void bind_module_type(py::module_& module) {
  py::class_<FieldInfo>(module, "FieldInfo", "One argument of a module's constructor or forward.")
      .def_readonly("name", &FieldInfo::name)
      .def_readonly("type", &FieldInfo::type, "Python type, as in an annotation")
      .def_readonly("default", &FieldInfo::initial, "Ellipsis if it is required")
      .def_readonly("doc", &FieldInfo::doc);
  py::class_<ModuleType>(module, "ModuleType", "A C++ module class.")
      .def_property_readonly("name", &ModuleType::name)
      .def_property_readonly("doc", &ModuleType::doc)
      .def_property_readonly("options", &ModuleType::option_fields)
      .def_property_readonly("inputs", &ModuleType::input_fields)
      .def_property_readonly("has_extra_state", &ModuleType::has_extra_state)
      .def_property("forward_positions", &ModuleType::forward_positions,
                    &ModuleType::set_forward_positions,
                    "How many arguments of forward may be given by position.")
      .def(
          "construct",
          [](const ModuleType& type, const py::args& args, const py::kwargs& kwargs) {
            return type.construct(args, kwargs);
          },
          "A new module; the arguments are `options`.");
}

RotaryPairs get_pairs(bool interleaved) {
  return interleaved ? RotaryPairs::neighbors : RotaryPairs::halves;
}

using MadeWgrads = std::vector<std::pair<at::Tensor, std::optional<at::Tensor>>>;

std::optional<MadeWgrads> make_delayed_wgrads(ModuleAdapter& adapter) {
  MadeWgrads made;
  const bool any = adapter.module().make_delayed_wgrads([&](const DelayedWgrad& each) {
    made.emplace_back(each.weight,
                      each.gradient.defined() ? std::optional(each.gradient) : std::nullopt);
  });
  return any ? std::optional(std::move(made)) : std::nullopt;
}

// The names of Transformer Engine.
py::dict placement(ModuleAdapter& adapter, const std::string& name) {
  const ParameterPlacement found = adapter.module().placement(name);
  py::dict attributes;
  if (found.partition_dim) {
    attributes["tensor_model_parallel"] = true;
    attributes["partition_dim"] = *found.partition_dim;
    attributes["partition_stride"] = 1;
  }
  if (found.sequence_parallel) attributes["sequence_parallel"] = *found.sequence_parallel;
  return attributes;
}

void bind_module_adapter(py::module_& module) {
  AdapterClass adapter(module, "ModuleAdapter", "A C++ module, to be owned by a torch.nn.Module.");
  bind_fp8_state(adapter);
  adapter.def_property_readonly("type", &ModuleAdapter::type, py::return_value_policy::reference)
      .def("make_call", &make_call, "forward(owner, args: tuple, kwargs: dict)")
      .def("options", &ModuleAdapter::options)
      .def("parameters", &ModuleAdapter::parameters, "[(name, tensor)], not of children")
      .def("is_gemm_weight",
           [](ModuleAdapter& adapter, const std::string& name) {
             return adapter.module().is_gemm_weight(name);
           })
      .def("placement", &placement, py::arg("name"),
           "Attributes that Megatron-LM reads of the parameter of this name.")
      .def("buffers", &ModuleAdapter::buffers, "[(name, tensor)], not of children")
      .def("children",
           [](const ModuleAdapter& adapter) {
             std::vector<std::pair<py::str, py::object>> children;
             for (const ModuleAdapter::Child& child : adapter.children()) {
               children.emplace_back(child.name, child.adapter);
             }
             return children;
           })
      .def("extra_state",
           [](ModuleAdapter& adapter) -> std::optional<at::Tensor> {
             const at::Tensor bytes = adapter.module().extra_state();
             return bytes.defined() ? std::optional(bytes) : std::nullopt;
           })
      .def(
          "set_extra_state",
          [](ModuleAdapter& adapter, const at::Tensor& bytes, const std::string& key) {
            adapter.module().set_extra_state(bytes, key);
          },
          py::arg("state"), py::arg("key") = "_extra_state",
          "Restores the result of extra_state(). Messages begin with the key.")
      .def("release_tensors", &ModuleAdapter::release_tensors,
           "Releases the C++ references to the tensors until the next forward.")
      .def("set_tensor_parallel_group",
           [](ModuleAdapter& adapter, const py::object& group) {
             adapter.module().set_tensor_parallel_group(to_process_group(group, "tp_group"));
           })
      .def(
          "backward_dw", [](ModuleAdapter& adapter) { return adapter.module().backward_dw(); },
          // Autograd's engine is entered without it.
          py::call_guard<py::gil_scoped_release>(),
          "Computes the weight gradients of the oldest pending backward; False if none is pending.")
      .def(
          "make_delayed_wgrads", &make_delayed_wgrads, py::call_guard<py::gil_scoped_release>(),
          "Like backward_dw, but returns (weight, gradient) pairs; None if no backward is pending.")
      .def("has_delayed_wgrads",
           [](ModuleAdapter& adapter) { return adapter.module().has_delayed_wgrads(); })
      .def(
          "drop_delayed_wgrads",
          [](ModuleAdapter& adapter, std::optional<std::size_t> backward) {
            adapter.module().drop_delayed_wgrads(backward);
          },
          py::arg("backward") = py::none(),
          "Discards the pending weight gradients from one backward (0 is the oldest), or from "
          "every backward.")
      .def(
          "set_context_parallel_group",
          [](ModuleAdapter& adapter, const py::list& groups, const std::string& comm_type,
             std::int64_t lost) {
            std::vector<ProcessGroupPtr> found;
            for (const py::handle group : groups) {
              found.push_back(
                  to_process_group(py::reinterpret_borrow<py::object>(group), "cp_group"));
            }
            ContextParallel parallel = context_parallel(found, comm_type);
            parallel.lost = lost;
            adapter.module().set_context_parallel(parallel);
          },
          py::arg("groups"), py::arg("comm_type"), py::arg("lost"),
          "Groups: none, one, or for a2a+p2p two. lost: ranks of a group that is gone.")
      .def("set_debug_name", [](ModuleAdapter& adapter, const std::string& name) {
        adapter.module().set_debug_name(name);
      });
}

}  // namespace

void find_main_grads_in_attributes() {
  set_main_grad_source(std::make_unique<AttributeMainGrads>());
}

std::shared_ptr<ModuleAdapter> adapt(const std::shared_ptr<torch::nn::Module>& module) {
  for (const auto& type : module_types()) {
    if (auto adapter = type->adapt(module)) {
      return adapter;
    }
  }
  raise<Error>("the C++ module {} is not in core/modules/module_list.h", module->name());
}

void bind_modules(py::module_& module) {
  find_main_grads_in_attributes();
  bind_module_type(module);
  bind_module_adapter(module);
  module.def(
      "module_types",
      [] {
        py::list types;
        for (const auto& type : module_types()) {
          types.append(py::cast(type.get(), py::return_value_policy::reference));
        }
        return types;
      },
      "Every module class of the C++ core.");
  module.def(
      "set_score_blocks",
      [](std::int64_t most_whole, std::int64_t of_block) {
        const BlockLimits before = block_limits();
        block_limits() = {.most_whole = most_whole, .of_block = of_block};
        return py::make_tuple(before.most_whole, before.of_block);
      },
      py::arg("most_whole"), py::arg("of_block"),
      "For tests: sets the maximum number of attention scores in memory on a CPU and the number "
      "in one block; returns the previous values.");
  module.def("rotary_angles", &rotary_angles, py::arg("max_seq_len"), py::arg("dim"),
             py::arg("base"), "Angles [max_seq_len, 1, 1, dim], FP32.");
  module.def(
      "apply_rotary_embedding",
      [](const at::Tensor& t, const at::Tensor& angles, std::int64_t batch_dim, bool interleaved) {
        return apply_rotary_embedding(t, angles, batch_dim, get_pairs(interleaved));
      },
      py::arg("t"), py::arg("angles"), py::arg("batch_dim"), py::arg("interleaved"),
      "t [seq, batch, head, channels] (batch_dim 1) or [batch, seq, ...] (0), rotated.");
  module.def(
      "apply_rotary_embedding_packed",
      [](const at::Tensor& t, const at::Tensor& angles, const at::Tensor& cu_seqlens,
         bool interleaved) {
        return apply_rotary_embedding_packed(t, angles, cu_seqlens, std::nullopt,
                                             get_pairs(interleaved));
      },
      py::arg("t"), py::arg("angles"), py::arg("cu_seqlens"), py::arg("interleaved"),
      "t [tokens, head, channels], rotated by each token's place in its sequence.");
  module.def(
      "default_device", [](bool has_gpu) { return default_device(has_gpu); }, py::arg("has_gpu"),
      "Where modules are made that name no device.");
  module.def("set_module_class", &set_module_class,
             "Sets the Python class that is the common base of the modules.");
}

void bind_gemm(py::module_& module) {
  module.def(
      "newest_gemm_choice",
      [] {
        const ops::GemmChoice choice = ops::newest_gemm_choice();
        return std::pair(std::string(choice.kernel), std::string(choice.reason));
      },
      "(kernel, reason) of the newest GEMM of this thread: which kernel ran, and why not the "
      "fastest one; an empty reason: it is the fastest one.");
  module.def(
      "gemm_counts",
      [] {
        const GemmCounts counts = gemm_counts();
        return std::pair(counts.quantized, counts.high_precision);
      },
      "(quantized, in high precision): the GEMMs that this process has run so far.");
}

}  // namespace telens::python
