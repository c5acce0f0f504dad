#include "python/bindings/quantizers.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"
#include "python/bindings/quantized_tensor.h"

namespace telens::python {

namespace py = pybind11;

namespace {

py::object quantize(Quantizer& quantizer, const at::Tensor& tensor) {
  QuantizedTensor quantized = [&] {
    py::gil_scoped_release no_gil;
    const c10::AutoGradMode no_grad(false);
    return quantizer.quantize(tensor);
  }();
  return wrap_quantized(quantized);
}

py::object update_quantized(Quantizer& quantizer, const at::Tensor& source,
                            const py::object& target) {
  if (!is_wrapped_quantized(target.ptr())) {
    raise<UsageError>("update_quantized: the target must be a QuantizedTensor, got {}",
                      Py_TYPE(target.ptr())->tp_name);
  }
  QuantizedTensor& storage = unwrap_quantized(target.ptr());
  const c10::AutoGradMode no_grad(false);
  quantizer.quantize_into(source, storage);
  return target;
}

py::object make_empty(Quantizer& quantizer, const std::vector<std::int64_t>& shape,
                      at::ScalarType dtype, const py::object& device) {
  const auto target = device.is_none()
                          ? at::Device(at::kCPU)
                          : py::module_::import("torch").attr("device")(device).cast<at::Device>();
  return quantize(quantizer, at::zeros(shape, at::TensorOptions().dtype(dtype).device(target)));
}

void set_usage(Quantizer& quantizer, std::optional<bool> rowwise, std::optional<bool> columnwise) {
  const Usage usage = quantizer.usage();
  quantizer.set_usage({rowwise.value_or(usage.rowwise), columnwise.value_or(usage.columnwise)});
}

void bind_base(py::module_& module) {
  py::class_<Quantizer, std::shared_ptr<Quantizer>>(
      module, "Quantizer", "Turns a high-precision tensor into a QuantizedTensor.")
      .def("__call__", &quantize, py::arg("tensor"))
      .def("quantize", &quantize, py::arg("tensor"), "The tensor's QuantizedTensor.")
      .def("update_quantized", &update_quantized, py::arg("src"), py::arg("dst"),
           "Quantizes src into dst's own storage, and returns dst.")
      .def("make_empty", &make_empty, py::arg("shape"), py::kw_only(),
           py::arg("dtype") = at::kFloat, py::arg("device") = py::none(),
           "A QuantizedTensor of zeros.")
      .def("set_usage", &set_usage, py::kw_only(), py::arg("rowwise") = py::none(),
           py::arg("columnwise") = py::none(), "Which orientations to make; None: as before.")
      .def(
          "calibrate",
          [](Quantizer& quantizer, const at::Tensor& tensor) {
            const c10::AutoGradMode no_grad(false);
            quantizer.calibrate(tensor);
          },
          py::arg("tensor"), "Observes the tensor's amax without quantizing.")
      .def("copy", &Quantizer::copy)
      .def_property_readonly("dtype", &Quantizer::format)
      .def_property_readonly("rowwise_usage",
                             [](const Quantizer& quantizer) { return quantizer.usage().rowwise; })
      .def_property_readonly("columnwise_usage", [](const Quantizer& quantizer) {
        return quantizer.usage().columnwise;
      });
}

}  // namespace

void bind_quantizers(py::module_& module) {
  bind_base(module);
  py::class_<DelayedScalingQuantizer, Quantizer, std::shared_ptr<DelayedScalingQuantizer>>(
      module, "Float8Quantizer", "Per-tensor FP8 with a scale that is known before.")
      .def(py::init([](at::Tensor scale, at::Tensor amax, FormatId format, bool rowwise,
                       bool columnwise) {
             return std::make_shared<DelayedScalingQuantizer>(
                 format, std::move(scale), std::move(amax), Usage{rowwise, columnwise});
           }),
           py::arg("scale"), py::arg("amax"), py::arg("fp8_dtype"), py::kw_only(),
           py::arg("rowwise") = true, py::arg("columnwise") = true,
           "scale, amax: FP32 with 1 element; amax takes the largest |x| seen.")
      .def_property_readonly("scale", &DelayedScalingQuantizer::known_scale)
      .def_property_readonly("amax", &DelayedScalingQuantizer::amax);
  py::class_<CurrentScalingQuantizer, Quantizer, std::shared_ptr<CurrentScalingQuantizer>>(
      module, "Float8CurrentScalingQuantizer", "Per-tensor FP8 with a scale from its own amax.")
      .def(py::init([](FormatId format, const py::object&, bool rowwise, bool columnwise,
                       bool with_amax_reduction, const py::object&, bool force_pow_2_scales,
                       float amax_epsilon) {
             if (with_amax_reduction) {
               raise<UsageError>(
                   "Float8CurrentScalingQuantizer: with_amax_reduction is not supported yet");
             }
             return std::make_shared<CurrentScalingQuantizer>(
                 format, CurrentScalingOptions{force_pow_2_scales, amax_epsilon},
                 Usage{rowwise, columnwise});
           }),
           py::arg("fp8_dtype"), py::arg("device") = py::none(), py::kw_only(),
           py::arg("rowwise") = true, py::arg("columnwise") = true,
           py::arg("with_amax_reduction") = false, py::arg("amax_reduction_group") = py::none(),
           py::arg("force_pow_2_scales") = false, py::arg("amax_epsilon") = 0.0F);
}

py::object from_quantizer(const Quantizer* quantizer) {
  if (quantizer == nullptr) {
    return py::none();
  }
  const std::shared_ptr<Quantizer> copy = quantizer->copy();
  copy->set_usage({.rowwise = true, .columnwise = true});
  return py::cast(copy);
}

}  // namespace telens::python
