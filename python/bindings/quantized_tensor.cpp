#include "python/bindings/quantized_tensor.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <utility>

#include "core/modules/layer/gemm_operands.h"
#include "core/quantization/quantized_payload.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"

namespace telens::python {

namespace py = pybind11;

void bind_quantized_tensor(py::module_& module) {
  bind_quantized_storage(module);
  module.def(
      "stand_for_codes",
      [](const at::Tensor& tensor, std::shared_ptr<QuantizedTensor> storage) {
        bind_quantized(tensor, std::move(storage));
      },
      py::arg("tensor"), py::arg("storage"), "Binds a tensor without values to this storage.");
  module.def("values_of_codes", &dequantize_handle, py::arg("tensor"), py::arg("dtype"),
             py::call_guard<WithoutGil>(),
             "Returns the values of a quantized tensor. Differentiable.");
}

namespace {

// Replaces a tensor with a payload by the payload's Python wrapper in autograd's graph.
class WrapFunction : public torch::autograd::Function<WrapFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& tensor) {
    const py::object wrapper = wrap_quantized(*find_quantized(tensor));
    return THPVariable_Unpack(wrapper.ptr());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return gradients;
  }
};

}  // namespace

at::Tensor wrap_carried(const at::Tensor& tensor) {
  if (is_quantized_handle(tensor) || find_quantized(tensor) == nullptr) return tensor;
  return WrapFunction::apply(tensor);
}

}  // namespace telens::python
