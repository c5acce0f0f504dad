// A C++ module under a Python torch.nn.Module.
//
// The Python object ("owner") holds the parameters, buffers and children under the C++ module's
// names, as any nn.Module does, and is free to swap them (FSDP2, load_state_dict(assign=True),
// functional_call, pruning, LoRA). Before each forward the adapter looks whether it did: tensors
// with another identity are handed to C++, and a child that is no longer the untouched adapter of
// the C++ child (it has hooks, another forward, or was replaced) is called in its place.
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

  // The C++ forward with the owner's present tensors and children: a tensor, or a tuple of tensors
  // where the module returns several (of a tensor and a list, for some). args is a tuple, kwargs a
  // dict. GIL held.
  py::object call(PyObject* owner, PyObject* args, PyObject* kwargs);

  // The C++ forward for an owner that is no torch.nn.Module: with these tensors, in the order of
  // parameters() (undefined for one that the module does without), and no buffers or children.
  Outputs run(const std::vector<at::Tensor>& parameters, bool training, PyObject* args,
              PyObject* kwargs);

  // The children in C++ order, each with its adapter (a Python object, one for good).
  struct Child {
    py::str name;
    py::object adapter;
    ModuleAdapter* direct = nullptr;  // the C++ side of `adapter`
    py::object callee;                // weak reference to what the override calls; null: none
  };
  const std::vector<Child>& children() const { return children_; }

  // Own tensors: (name, tensor) as made by C++.
  std::vector<std::pair<std::string, at::Tensor>> parameters() const;
  std::vector<std::pair<std::string, at::Tensor>> buffers() const;

  // C++ lets go of the tensors until the next call().
  void release_tensors();

  // The options with which the module was made, as keyword arguments.
  virtual py::dict options() const = 0;

 protected:
  virtual Outputs forward(PyObject* args, PyObject* kwargs) = 0;
  // The C++ parent calls the Python module behind this weak reference; a null object: C++ again.
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
  // Lets go of tensors that carry an autograd graph, its own and those of the children that C++
  // calls itself: they are of one forward only.
  void release_graphs();

  std::shared_ptr<Module> module_;
  const ModuleType& type_;
  std::vector<Slot> slots_;
  std::vector<Child> children_;
  bool holds_graph_ = false;  // a tensor with a graph is bound here or below
};

// Tells the adapter what an untouched Python module looks like: `module_class` is the common base
// class of all adapters in Python, `forward` its forward.
void set_module_class(const py::object& module_class);

}  // namespace telens::python
