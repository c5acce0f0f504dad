#include "python/bindings/module.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>

#include "core/modules/shared/main_grad.h"
#include "python/bindings/gil.h"

namespace telens::python {

namespace py = pybind11;

namespace {

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

}  // namespace

void find_main_grads_in_attributes() {
  set_main_grad_source(std::make_unique<AttributeMainGrads>());
}

}  // namespace telens::python
