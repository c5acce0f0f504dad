#include "python/bindings/module_adapter.h"

#include <torch/csrc/autograd/python_variable.h>

#include <utility>

#include "core/base/error.h"
#include "python/bindings/quantized_tensor.h"

namespace telens::python {

namespace {

// Attribute names, and the objects that a module without user changes has. Created once and never
// destroyed: the interpreter may end before static destructors run.
struct Known {
  py::str parameters{"_parameters"};
  py::str buffers{"_buffers"};
  py::str modules{"_modules"};
  py::str adapter{"_telens_adapter"};
  py::str forward{"forward"};
  py::str call{"__call__"};
  py::str training{"training"};
  py::str compiled_call{"_compiled_call_impl"};
  py::str hooks[4] = {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks",
                      "_backward_pre_hooks"};
  py::object untouched_forward;
  py::object untouched_call;
  std::vector<py::dict> global_hooks;
};

Known& known() {
  static Known* instance = [] {
    auto* made = new Known;
    for (py::str* name : {&made->parameters, &made->buffers, &made->modules, &made->adapter,
                          &made->forward, &made->call, &made->compiled_call, &made->training,
                          &made->hooks[0], &made->hooks[1], &made->hooks[2], &made->hooks[3]}) {
      PyUnicode_InternInPlace(&name->ptr());
    }
    return made;
  }();
  return *instance;
}

bool has_global_hooks() {
  for (const py::dict& hooks : known().global_hooks) {
    if (PyDict_GET_SIZE(hooks.ptr()) != 0) {
      return true;
    }
  }
  return false;
}

// The instance dictionary of an nn.Module (never absent: its constructor fills it).
py::object get_attributes(PyObject* object) {
  py::object attributes =
      py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
  if (!attributes) {
    throw py::error_already_set();
  }
  return attributes;
}

// Borrowed; nullptr if absent or None.
PyObject* lookup(PyObject* dictionary, const py::str& key) {
  PyObject* value = PyDict_GetItemWithError(dictionary, key.ptr());
  if (value == nullptr && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return value == Py_None ? nullptr : value;
}

bool class_attribute_is(PyTypeObject* type, const py::str& name, const py::object& expected) {
  const auto found = py::reinterpret_steal<py::object>(
      PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name.ptr()));
  if (!found) {
    throw py::error_already_set();
  }
  return found.is(expected);
}

// True if a call of the Python module would only call the C++ module of `adapter`.
bool is_untouched(PyObject* object, PyObject* attributes, const py::object& adapter) {
  const Known& names = known();
  if (PyDict_GetItem(attributes, names.adapter.ptr()) != adapter.ptr()) {
    return false;
  }
  if (PyDict_Contains(attributes, names.forward.ptr()) != 0 ||
      lookup(attributes, names.compiled_call) != nullptr) {
    return false;
  }
  for (const py::str& hooks : names.hooks) {
    PyObject* registered = lookup(attributes, hooks);
    if (registered != nullptr && PyObject_Size(registered) != 0) {
      return false;
    }
  }
  PyTypeObject* type = Py_TYPE(object);
  return class_attribute_is(type, names.forward, names.untouched_forward) &&
         class_attribute_is(type, names.call, names.untouched_call);
}

}  // namespace

void set_module_class(const py::object& module_class) {
  Known& names = known();
  names.untouched_forward = module_class.attr("forward");
  names.untouched_call = module_class.attr("__call__");
  const py::module_ torch_modules = py::module_::import("torch.nn.modules.module");
  for (const char* name : {"_global_forward_hooks", "_global_forward_pre_hooks",
                           "_global_backward_hooks", "_global_backward_pre_hooks"}) {
    names.global_hooks.emplace_back(torch_modules.attr(name));
  }
}

ModuleAdapter::ModuleAdapter(std::shared_ptr<Module> module, const ModuleType& type)
    : module_(std::move(module)), type_(type) {
  const auto add_slots = [this](const auto& tensors, bool is_buffer) {
    for (const auto& item : tensors) {
      Slot slot{py::str(item.key()), item.key(), is_buffer, {}};
      PyUnicode_InternInPlace(&slot.name.ptr());
      slots_.push_back(std::move(slot));
    }
  };
  add_slots(module_->named_parameters(/*recurse=*/false), false);
  add_slots(module_->named_buffers(/*recurse=*/false), true);
  for (const auto& item : module_->named_children()) {
    std::shared_ptr<ModuleAdapter> adapter = adapt(item.value());
    Child child{py::str(item.key()), py::cast(adapter), adapter.get(), {}};
    PyUnicode_InternInPlace(&child.name.ptr());
    children_.push_back(std::move(child));
  }
}

std::vector<std::pair<std::string, at::Tensor>> ModuleAdapter::parameters() const {
  return module_->named_parameters(/*recurse=*/false).pairs();
}

std::vector<std::pair<std::string, at::Tensor>> ModuleAdapter::buffers() const {
  return module_->named_buffers(/*recurse=*/false).pairs();
}

py::object ModuleAdapter::call(PyObject* owner, PyObject* args, PyObject* kwargs) {
  synchronize(owner);
  Outputs outputs = forward(args, kwargs);
  if (holds_graph_) {
    release_graphs();
  }
  const auto wrap = [](at::Tensor& output) {
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(wrap_carried(output)));
  };
  if (outputs.size() == 1) {
    return wrap(outputs[0]);
  }
  if (type_.lists_biases()) {
    py::list biases(outputs.size() - 1);
    for (std::size_t i = 1; i < outputs.size(); ++i) {
      biases[i - 1] = wrap(outputs[i]);
    }
    return py::make_tuple(wrap(outputs[0]), biases);
  }
  py::tuple results(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    results[i] = wrap(outputs[i]);
  }
  return results;
}

Outputs ModuleAdapter::run(const std::vector<at::Tensor>& parameters, bool training, PyObject* args,
                           PyObject* kwargs) {
  if (training != module_->is_training()) module_->train(training);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Slot& slot = slots_[i];
    if (parameters[i].is_same(slot.bound)) continue;
    module_->set_tensor(slot.key, parameters[i]);
    slot.bound = parameters[i];
  }
  return forward(args, kwargs);
}

void ModuleAdapter::synchronize(PyObject* owner) {
  const py::object attributes = get_attributes(owner);
  const bool training = lookup(attributes.ptr(), known().training) == Py_True;
  if (training != module_->is_training()) {
    module_->train(training);  // children too, which then follow their own flags
  }
  synchronize_tensors(owner, attributes.ptr());
  if (!children_.empty()) {
    synchronize_children(attributes.ptr());
  }
}

void ModuleAdapter::synchronize_tensors(PyObject* owner, PyObject* attributes) {
  PyObject* parameters = lookup(attributes, known().parameters);
  PyObject* buffers = lookup(attributes, known().buffers);
  for (Slot& slot : slots_) {
    PyObject* registered = lookup(slot.is_buffer ? buffers : parameters, slot.name);
    if (registered != nullptr) {
      bind(slot, registered);
      continue;
    }
    // Pruning and parametrizations keep the original elsewhere and compute the attribute.
    const auto computed =
        py::reinterpret_steal<py::object>(PyObject_GetAttr(owner, slot.name.ptr()));
    if (!computed) {
      throw py::error_already_set();
    }
    bind(slot, computed.ptr());
  }
}

void ModuleAdapter::bind(Slot& slot, PyObject* value) {
  if (value == Py_None) {  // such as `linear.bias = None`
    module_->set_tensor(slot.key, at::Tensor());
    slot.bound = at::Tensor();
    return;
  }
  if (!THPVariable_Check(value)) {
    raise<UsageError>("{}: '{}' must be a tensor, not {}; assign a torch.nn.Parameter",
                      type_.name(), slot.key, Py_TYPE(value)->tp_name);
  }
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (is_wrapped_quantized(value)) {
    // Set in every forward, because the wrapper may have received new codes.
    module_->set_tensor(slot.key, tensor, unwrap_quantized(value));
    slot.bound = tensor;
    return;
  }
  if (tensor.is_same(slot.bound)) {
    return;
  }
  module_->set_tensor(slot.key, tensor);
  slot.bound = tensor;
  holds_graph_ = holds_graph_ || tensor.grad_fn() != nullptr;
}

void ModuleAdapter::release_tensors() {
  for (Slot& slot : slots_) {
    module_->set_tensor(slot.key, at::Tensor());
    slot.bound = at::Tensor();
  }
}

void ModuleAdapter::release_graphs() {
  for (Slot& slot : slots_) {
    if (slot.bound.defined() && slot.bound.grad_fn() != nullptr) {
      module_->set_tensor(slot.key, slot.bound.detach());
      slot.bound = at::Tensor();
    }
  }
  for (const Child& child : children_) {
    if (child.direct->holds_graph_) {
      child.direct->release_graphs();
    }
  }
  holds_graph_ = false;
}

void ModuleAdapter::synchronize_children(PyObject* attributes) {
  PyObject* modules = lookup(attributes, known().modules);
  const bool all_hooked = has_global_hooks();
  for (Child& child : children_) {
    PyObject* object = lookup(modules, child.name);
    if (object == nullptr) {
      raise<UsageError>(
          "{}: its child '{}' was removed; the forward needs it (put a module such "
          "as torch.nn.Identity in its place)",
          type_.name(), child.name.cast<std::string>());
    }
    const py::object child_attributes = get_attributes(object);
    if (!all_hooked && is_untouched(object, child_attributes.ptr(), child.adapter)) {
      if (child.callee) {
        child.callee = {};
        child.direct->override_with(child.callee);
      }
      child.direct->synchronize(object);
      holds_graph_ = holds_graph_ || child.direct->holds_graph_;
    } else if (!child.callee || PyWeakref_GetObject(child.callee.ptr()) != object) {
      child.callee = py::weakref(object);
      child.direct->override_with(child.callee);
    }
  }
}

Outputs call_python(const py::object& reference, const py::tuple& args, const py::dict& kwargs) {
  const auto module = py::reinterpret_borrow<py::object>(PyWeakref_GetObject(reference.ptr()));
  if (module.is_none()) {
    raise<UsageError>("a child module was replaced while its parent's forward ran");
  }
  const py::object result = module(*args, **kwargs);
  Outputs outputs;
  const auto add = [&](py::handle value) {
    if (!THPVariable_Check(value.ptr())) {
      raise<UsageError>("{}: its forward must return a tensor or a tuple of tensors, not {}",
                        Py_TYPE(module.ptr())->tp_name, Py_TYPE(value.ptr())->tp_name);
    }
    outputs.push_back(THPVariable_Unpack(value.ptr()));
  };
  if (py::isinstance<py::tuple>(result)) {
    for (const py::handle value : py::reinterpret_borrow<py::tuple>(result)) {
      add(value);
    }
  } else {
    add(result);
  }
  return outputs;
}

}  // namespace telens::python
