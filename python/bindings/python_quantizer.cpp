#include "python/bindings/python_quantizer.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>

#include "core/base/error.h"
#include "python/bindings/gil.h"
#include "python/bindings/quantized_tensor.h"

namespace telens::python {

namespace py = pybind11;

namespace {

const Quantizer& get_base(const py::object& object) {
  if (!py::isinstance<Quantizer>(object)) {
    raise<UsageError>("a quantizer must be of a subclass of telens.pytorch's quantizers, not {}",
                      Py_TYPE(object.ptr())->tp_name);
  }
  return object.cast<const Quantizer&>();
}

// The interpreter may have ended before the last layer did.
void release(PyObject* object) {
  if (Py_IsInitialized() == 0) return;
  const WithGil gil;
  Py_DECREF(object);
}

// The thread that has it may want the GIL.
std::unique_lock<std::mutex> lock_without_gil(std::mutex& mutex) {
  if (PyGILState_Check() == 0) return std::unique_lock(mutex);
  const WithoutGil no_gil;
  return std::unique_lock(mutex);
}

// The method qgemm of a quantizer's Python object.
class PythonGemm final : public CustomGemm {
 public:
  explicit PythonGemm(std::shared_ptr<PyObject> quantizer) : quantizer_(std::move(quantizer)) {}

  at::Tensor multiply(const CustomGemmCall& call) const override {
    const WithGil gil;
    const c10::AutoGradMode no_grad(false);
    const auto self = py::reinterpret_borrow<py::object>(quantizer_.get());
    const QuantizedData& x = call.gemm == Gemm::wgrad ? call.a.columnwise : call.a.rowwise;
    const QuantizedData& w = call.gemm == Gemm::fprop ? call.b.rowwise : call.b.columnwise;
    const py::object made =
        py::module_::import("telens.pytorch.custom_recipes.gemm")
            .attr("call_qgemm")(
                self, std::string(get_name(call.gemm)), x.codes, w.codes, x.scale_inv, w.scale_inv,
                call.bias.defined() ? py::cast(call.bias) : py::none(), call.out_dtype,
                call.split_accumulator, wrap_quantized(call.a), wrap_quantized(call.b));
    return made.cast<at::Tensor>();
  }

 private:
  std::shared_ptr<PyObject> quantizer_;
};

}  // namespace

PythonQuantizer::PythonQuantizer(py::object object)
    : Quantizer(get_base(object).format(), get_base(object).usage()),
      shared_(std::make_shared<Shared>()),
      mode_(get_base(object).mode()) {
  const bool has_gemm = py::hasattr(object, "qgemm");
  shared_->object.reset(object.release().ptr(), release);
  if (has_gemm) custom_gemm_ = std::make_shared<PythonGemm>(shared_->object);
}

PythonQuantizer::PythonQuantizer(const PythonQuantizer& other) = default;

std::shared_ptr<Quantizer> PythonQuantizer::copy() const {
  return std::shared_ptr<Quantizer>(new PythonQuantizer(*this));
}

bool PythonQuantizer::quantizes_as(const Quantizer& other) const {
  const auto* const python = dynamic_cast<const PythonQuantizer*>(&other);
  return python != nullptr && python->shared_->object == shared_->object;
}

py::object PythonQuantizer::object() const {
  return py::reinterpret_borrow<py::object>(shared_->object.get());
}

QuantizedTensor PythonQuantizer::quantize(const at::Tensor& x, Usage usage) const {
  const auto lock = lock_without_gil(shared_->in_use);
  const WithGil gil;
  const c10::AutoGradMode no_grad(false);
  const py::object self = object();
  auto& base = self.cast<Quantizer&>();
  base.set_usage(usage);
  // Codes of ranks that are joined need one scale: a cast that the class inherits makes it so.
  if (amax_reduction_group()) base.reduce_amax_over(amax_reduction_group());
  const py::object made = self.attr("quantize")(x);
  if (!is_wrapped_quantized(made.ptr())) {
    raise<UsageError>("{}.quantize returned {}; expected a QuantizedTensor of telens.pytorch",
                      Py_TYPE(self.ptr())->tp_name, Py_TYPE(made.ptr())->tp_name);
  }
  QuantizedTensor tensor = unwrap_quantized(made.ptr());
  check(tensor, x, usage);
  tensor.custom_gemm = custom_gemm_;
  return tensor;
}

void PythonQuantizer::check(const QuantizedTensor& made, const at::Tensor& x, Usage usage) const {
  const char* const name = Py_TYPE(shared_->object.get())->tp_name;
  if (made.format != format() || made.mode != mode_) {
    raise<UsageError>("{}.quantize returned a tensor in {}, scaling {}; expected {}, scaling {}",
                      name, get_name(made.format), get_name(made.mode), get_name(format()),
                      get_name(mode_));
  }
  if (at::IntArrayRef(made.sizes) != x.sizes()) {
    raise<ShapeError>("{}.quantize returned a tensor of shape {} for one of shape {}", name,
                      c10::str(at::IntArrayRef(made.sizes)), c10::str(x.sizes()));
  }
  for (const bool rowwise : {true, false}) {
    const bool wanted = rowwise ? usage.rowwise : usage.columnwise;
    if (wanted && !(rowwise ? made.rowwise : made.columnwise).defined()) {
      raise<UsageError>(
          "{}.quantize returned a tensor without its {} orientation, which {}_usage asked for",
          name, rowwise ? "rowwise" : "columnwise", rowwise ? "rowwise" : "columnwise");
    }
  }
}

void PythonQuantizer::quantize_into(const at::Tensor& x, QuantizedTensor& out) const {
  const QuantizedTensor made = quantize(x, Usage{out.rowwise.defined(), out.columnwise.defined()});
  out.rowwise.fill(made.rowwise);
  out.columnwise.fill(made.columnwise);
  out.blocks = made.blocks;
  out.power_of_2_scales = made.power_of_2_scales;
  out.custom_gemm = made.custom_gemm;
}

}  // namespace telens::python
