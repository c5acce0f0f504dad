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
#include <type_traits>
#include <utility>
#include <vector>

#include "core/modules/module/module.h"
#include "python/bindings/fields.h"
#include "python/bindings/gil.h"

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

// ---- module classes for Python, derived from the C++ class: adding a module to
// core/modules/module_list.h is enough

class ModuleType {
 public:
  ModuleType(std::string name, std::string doc) : name_(std::move(name)), doc_(std::move(doc)) {}
  virtual ~ModuleType() = default;

  const std::string& name() const { return name_; }
  const std::string& doc() const { return doc_; }
  virtual std::vector<FieldInfo> option_fields() const = 0;
  virtual std::vector<FieldInfo> input_fields() const = 0;
  virtual bool has_extra_state() const = 0;
  // How many arguments of forward may be given by position; the others are keyword-only.
  Py_ssize_t forward_positions() const { return forward_positions_; }
  void set_forward_positions(Py_ssize_t positions) { forward_positions_ = positions; }
  // True if the outputs after the first one are one list.
  virtual bool lists_biases() const = 0;

  // A new module from constructor arguments.
  virtual std::shared_ptr<ModuleAdapter> construct(const py::tuple& args,
                                                   const py::dict& kwargs) const = 0;
  // The adapter of an existing module, or nullptr if the module is of another class.
  virtual std::shared_ptr<ModuleAdapter> adapt(
      const std::shared_ptr<torch::nn::Module>& module) const = 0;

 private:
  std::string name_;
  std::string doc_;
  Py_ssize_t forward_positions_ = PY_SSIZE_T_MAX;
};

// The adapter of a module of any registered class. Throws Error naming the class otherwise.
std::shared_ptr<ModuleAdapter> adapt(const std::shared_ptr<torch::nn::Module>& module);

// Calls the Python module held by `reference` (a weak reference) with the given arguments.
Outputs call_python(const py::object& reference, const py::tuple& args, const py::dict& kwargs);

template <typename M>
class TypedAdapter final : public ModuleAdapter {
 public:
  TypedAdapter(std::shared_ptr<M> module, const ModuleType& type)
      : ModuleAdapter(module, type), typed_(module.get()) {}

  py::dict options() const override { return write_fields(typed_->options()); }

 protected:
  Outputs forward(PyObject* args, PyObject* kwargs) override {
    const auto inputs =
        read_arguments<Inputs>(type().name().c_str(), args, kwargs, type().forward_positions());
    const WithoutGil no_gil;
    return typed_->forward(inputs);
  }

  void override_with(const py::object& reference) override {
    if (!reference) {
      typed_->set_override(nullptr);
      return;
    }
    // The function is copied and destroyed with the GIL held only: here, and with the module, whose
    // last owner is a Python object.
    typed_->set_override([reference](const Inputs& inputs) {
      const WithGil gil;
      const auto [args, kwargs] = write_arguments(inputs);
      return call_python(reference, args, kwargs);
    });
  }

 private:
  using Inputs = typename M::Inputs;

  M* typed_;
};

template <typename M>
class TypedModuleType final : public ModuleType {
 public:
  using ModuleType::ModuleType;

  std::vector<FieldInfo> option_fields() const override {
    return describe_fields<typename M::Options>();
  }
  std::vector<FieldInfo> input_fields() const override {
    return describe_fields<typename M::Inputs>();
  }
  bool has_extra_state() const override {
    // A class that does not override extra_state() has a pointer to the base's member.
    return !std::is_same_v<decltype(&M::extra_state), at::Tensor (Module::*)() const>;
  }
  bool lists_biases() const override {
    return requires { M::kListsBiases; };
  }
  std::shared_ptr<ModuleAdapter> construct(const py::tuple& args,
                                           const py::dict& kwargs) const override {
    auto options = read_arguments<typename M::Options>(name().c_str(), args.ptr(), kwargs.ptr());
    return std::make_shared<TypedAdapter<M>>(std::make_shared<M>(std::move(options)), *this);
  }
  std::shared_ptr<ModuleAdapter> adapt(
      const std::shared_ptr<torch::nn::Module>& module) const override {
    auto typed = std::dynamic_pointer_cast<M>(module);
    return typed ? std::make_shared<TypedAdapter<M>>(std::move(typed), *this) : nullptr;
  }
};

}  // namespace telens::python
