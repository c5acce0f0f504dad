// A C++ module under a Python torch.nn.Module.
//
// The Python object ("owner") holds the parameters, buffers and children under the C++ module's
// names, as any nn.Module does, and is free to swap them (FSDP2, load_state_dict(assign=True),
// functional_call, pruning, LoRA). Before each forward the adapter checks for such changes:
// replaced tensors are passed to C++, and a child that differs from the untouched adapter of the
// C++ child (it has hooks, another forward, or was replaced) is called instead of the C++ child.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "core/modules/module/module.h"

namespace telens::python {

namespace py = pybind11;

class ModuleType;

class ModuleAdapter {
 public:
  ModuleAdapter(std::shared_ptr<Module> module, const ModuleType& type);
  virtual ~ModuleAdapter() = default;
  ModuleAdapter(const ModuleAdapter&) = delete;
  ModuleAdapter& operator=(const ModuleAdapter&) = delete;

  Module& module() { return *module_; }
  const ModuleType& type() const { return type_; }

  // Runs the C++ forward with the owner's present tensors and children. Returns a tensor, or a
  // tuple of tensors if the module has several outputs (some modules: a tensor and a list). args is
  // a tuple, kwargs a dict. Requires the GIL.
  py::object call(PyObject* owner, PyObject* args, PyObject* kwargs);

  // Runs the C++ forward for an owner that is not a torch.nn.Module, with these tensors in the
  // order of parameters() (undefined for one that the module does not have) and without buffers or
  // children.
  Outputs run(const std::vector<at::Tensor>& parameters, bool training, PyObject* args,
              PyObject* kwargs);

  // The children in C++ order, each with its adapter (one permanent Python object).
  struct Child {
    py::str name;
    py::object adapter;
    ModuleAdapter* direct = nullptr;  // the C++ side of `adapter`
    py::object callee;  // weak reference to the override's target; null if there is none
  };
  const std::vector<Child>& children() const { return children_; }

  // Own tensors: (name, tensor) as made by C++.
  std::vector<std::pair<std::string, at::Tensor>> parameters() const;
  std::vector<std::pair<std::string, at::Tensor>> buffers() const;

  // Releases the C++ references to the tensors until the next call().
  void release_tensors();

  // The options with which the module was made, as keyword arguments.
  virtual py::dict options() const = 0;

 protected:
  virtual Outputs forward(PyObject* args, PyObject* kwargs) = 0;
  // The C++ parent calls the Python module of this weak reference; the C++ module if it is null.
  virtual void override_with(const py::object& reference) = 0;

 private:
  struct Slot {
    py::str name;
    std::string key;
    bool is_buffer = false;
    at::Tensor bound;  // the tensor that C++ computes with; undefined before the first call
  };

  void synchronize(PyObject* owner);
  void synchronize_tensors(PyObject* owner, PyObject* attributes);
  void synchronize_children(PyObject* attributes);
  void bind(Slot& slot, PyObject* value);
  // Releases tensors with an autograd graph, also in the children that C++ calls itself: they
  // belong to one forward.
  void release_graphs();

  std::shared_ptr<Module> module_;
  const ModuleType& type_;
  std::vector<Slot> slots_;
  std::vector<Child> children_;
  bool holds_graph_ = false;  // a tensor with a graph is bound here or below
};

// Sets the class and forward that an untouched Python module has: `module_class` is the common
// Python base class of the adapters.
void set_module_class(const py::object& module_class);

}  // namespace telens::python
