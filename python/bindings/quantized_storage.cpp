// The codes and scales of quantized tensors, and their Python objects.
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/ops/block_quantize.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"
#include "python/bindings/quantized_tensor.h"

namespace telens::python {

namespace py = pybind11;

namespace {

// Both set by telens.pytorch.tensor when it is imported; never destroyed.
py::object* wrapper_class = nullptr;
py::object* make_wrapper = nullptr;

// The attribute of the wrapper that holds the C++ struct.
constexpr const char* kStorageAttribute = "_storage";

std::optional<at::Tensor> optional_tensor(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// (squared_error, largest_scale), or None.
std::optional<std::pair<bool, float>> four_over_six_state(const BlockOptions& options) {
  if (!options.four_over_six) return std::nullopt;
  return std::pair(options.four_over_six->squared_error, options.four_over_six->largest_scale);
}

std::optional<FourOverSix> four_over_six(const py::handle& state) {
  const auto pair = state.cast<std::optional<std::pair<bool, float>>>();
  if (!pair) return std::nullopt;
  return ops::check_four_over_six(pair->second, pair->first);
}

py::tuple block_state(const QuantizedTensor& tensor) {
  const BlockOptions& options = tensor.blocks;
  return py::make_tuple(options.two_dimensional, static_cast<int>(options.scale_rounding),
                        options.power_of_2_scales, options.amax_epsilon, options.hadamard_signs,
                        options.stochastic_rounding, tensor.power_of_2_scales,
                        four_over_six_state(options), options.row_scaled);
}

BlockOptions block_options(const py::tuple& state) {
  return {.two_dimensional = state[0].cast<bool>(),
          .scale_rounding = static_cast<ScaleRounding>(state[1].cast<int>()),
          .power_of_2_scales = state[2].cast<bool>(),
          .amax_epsilon = state[3].cast<float>(),
          .hadamard_signs = state[4].cast<std::optional<std::uint16_t>>(),
          .stochastic_rounding = state[5].cast<bool>()};
}

void set_block_state(QuantizedTensor& tensor, const py::tuple& state) {
  // Older pickles end before these entries.
  constexpr std::size_t kKnownScales = 6;
  constexpr std::size_t kFourOverSix = 7;
  constexpr std::size_t kRowScaled = 8;
  tensor.blocks = block_options(state);
  tensor.power_of_2_scales = state.size() > kKnownScales && state[kKnownScales].cast<bool>();
  if (state.size() > kFourOverSix) {
    tensor.blocks.four_over_six = four_over_six(state[kFourOverSix]);
  }
  tensor.blocks.row_scaled = state.size() > kRowScaled && state[kRowScaled].cast<bool>();
}

at::Tensor dequantize(const QuantizedTensor& tensor, at::ScalarType dtype) {
  QuantizedTensor asked = tensor;
  asked.dtype = dtype;
  return asked.dequantize();
}

void bind_storage(py::module_& module) {
  py::class_<QuantizedTensor, std::shared_ptr<QuantizedTensor>>(
      module, "QuantizedStorage", "The codes and scales of a quantized tensor.")
      .def(py::init([](std::optional<at::Tensor> rowwise_data,
                       std::optional<at::Tensor> rowwise_scale_inv,
                       std::optional<at::Tensor> columnwise_data,
                       std::optional<at::Tensor> columnwise_scale_inv, FormatId format,
                       ScalingMode mode, at::ScalarType dtype, std::vector<std::int64_t> sizes,
                       std::optional<at::Tensor> rowwise_tensor_scale,
                       std::optional<at::Tensor> columnwise_tensor_scale) {
             const auto data = [](std::optional<at::Tensor>& codes,
                                  std::optional<at::Tensor>& scale_inv,
                                  std::optional<at::Tensor>& tensor_scale) {
               return QuantizedData{codes.value_or(at::Tensor()), scale_inv.value_or(at::Tensor()),
                                    tensor_scale.value_or(at::Tensor())};
             };
             return QuantizedTensor{
                 data(rowwise_data, rowwise_scale_inv, rowwise_tensor_scale),
                 data(columnwise_data, columnwise_scale_inv, columnwise_tensor_scale),
                 format,
                 mode,
                 dtype,
                 std::move(sizes),
                 {}};
           }),
           py::arg("rowwise_data"), py::arg("rowwise_scale_inv"), py::arg("columnwise_data"),
           py::arg("columnwise_scale_inv"), py::arg("fp8_dtype"), py::arg("mode"), py::arg("dtype"),
           py::arg("sizes"), py::arg("rowwise_tensor_scale") = py::none(),
           py::arg("columnwise_tensor_scale") = py::none())
      .def_property_readonly(
          "rowwise_data", [](const QuantizedTensor& q) { return optional_tensor(q.rowwise.codes); },
          "codes (uint8) [rows, columns], or None")
      .def_property_readonly(
          "rowwise_scale_inv",
          [](const QuantizedTensor& q) { return optional_tensor(q.rowwise.scale_inv); },
          "value = decoded code * scale_inv, or None; block modes: [rows / block height, columns / "
          "block length], E8M0 and E4M3 scales as uint8")
      .def_property_readonly(
          "columnwise_data",
          [](const QuantizedTensor& q) { return optional_tensor(q.columnwise.codes); },
          "codes (uint8) of the transposed matrix [columns, rows], or None")
      .def_property_readonly(
          "columnwise_scale_inv",
          [](const QuantizedTensor& q) { return optional_tensor(q.columnwise.scale_inv); })
      .def_property_readonly(
          "rowwise_tensor_scale",
          [](const QuantizedTensor& q) { return optional_tensor(q.rowwise.tensor_scale); },
          "the second-level scale of formats with block scales, FP32 with 1 element or "
          "one for each row of codes, or None")
      .def_property_readonly(
          "columnwise_tensor_scale",
          [](const QuantizedTensor& q) { return optional_tensor(q.columnwise.tensor_scale); })
      .def_readonly("fp8_dtype", &QuantizedTensor::format)
      .def_readonly("mode", &QuantizedTensor::mode)
      .def_property_readonly(
          "block_length", [](const QuantizedTensor& q) { return block_length(q.mode); },
          "elements that share a scale along a row, columnwise along a column; 0 means all of them")
      .def_readonly("dtype", &QuantizedTensor::dtype)
      .def_readonly("sizes", &QuantizedTensor::sizes)
      .def_property("blocks", &block_state, &set_block_state,
                    "for copies and pickles: the options of the block quantization, and "
                    "the known properties of their scales")
      .def(
          "update_usage",
          [](QuantizedTensor& q, bool rowwise, bool columnwise) {
            if ((rowwise && !q.rowwise.defined()) || (columnwise && !q.columnwise.defined())) {
              raise<UsageError>(
                  "QuantizedTensor: only one orientation was kept; quantize the high-precision "
                  "tensor again to have both");
            }
            q.rowwise = rowwise ? q.rowwise : QuantizedData{};
            q.columnwise = columnwise ? q.columnwise : QuantizedData{};
          },
          py::arg("rowwise"), py::arg("columnwise"))
      .def("dequantize", &dequantize, py::arg("dtype"), py::call_guard<WithoutGil>(),
           "The values, rounded once to BF16, FP16 or FP32.");
}

}  // namespace

void bind_quantized_storage(py::module_& module) {
  py::enum_<FormatId>(module, "DType", "Formats of elements, under Transformer Engine's names.")
      .value("kFloat32", FormatId::fp32)
      .value("kFloat16", FormatId::fp16)
      .value("kBFloat16", FormatId::bf16)
      .value("kFloat8E4M3", FormatId::e4m3)
      .value("kFloat8E5M2", FormatId::e5m2)
      .value("kFloat4E2M1", FormatId::e2m1)
      .value("kFloat6E3M2", FormatId::e3m2)
      .value("kFloat6E2M3", FormatId::e2m3);
  py::enum_<ScalingMode> modes(module, "ScalingMode", "How scales are laid out.");
  for (const ScalingMode mode : kAllScalingModes) modes.value(scheme(mode).id, mode);
  bind_storage(module);
  module.def(
      "set_quantized_tensor_class",
      [](const py::object& type, const py::object& factory) {
        wrapper_class = new py::object(type);
        make_wrapper = new py::object(factory);
      },
      "Sets the Python class that wraps QuantizedStorage, and the function that wraps it.");
}

py::object wrap_quantized(const QuantizedTensor& quantized) {
  if (make_wrapper == nullptr) {
    py::module_::import("telens.pytorch.tensor");
  }
  return (*make_wrapper)(std::make_shared<QuantizedTensor>(quantized));
}

bool is_wrapped_quantized(PyObject* object) {
  return wrapper_class != nullptr && !THPVariable_CheckExact(object) &&
         PyObject_IsInstance(object, wrapper_class->ptr()) == 1;
}

QuantizedTensor& unwrap_quantized(PyObject* object) {
  return *py::handle(object).attr(kStorageAttribute).cast<std::shared_ptr<QuantizedTensor>>();
}

py::object from_operand(const Operand& operand) {
  if (const auto* quantized = std::get_if<QuantizedTensor>(&operand)) {
    return wrap_quantized(*quantized);
  }
  return py::cast(std::get<at::Tensor>(operand));
}

Operand to_operand(const py::object& object) {
  if (is_wrapped_quantized(object.ptr())) {
    return unwrap_quantized(object.ptr());
  }
  if (!THPVariable_Check(object.ptr())) {
    raise<UsageError>("expected a torch.Tensor or a QuantizedTensor, got {}",
                      Py_TYPE(object.ptr())->tp_name);
  }
  return THPVariable_Unpack(object.ptr());
}

}  // namespace telens::python
