#include "python/bindings/quantizers.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/ops/block_quantize.h"
#include "core/quantization/block_scaling.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"
#include "core/quantization/quantized_payload.h"
#include "core/quantization/quantized_tensor.h"
#include "core/quantization/quantizer.h"
#include "core/quantization/recipe.h"
#include "python/bindings/distributed.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"
#include "python/bindings/quantized_tensor.h"

namespace telens::python {

namespace py = pybind11;

namespace {

// ---- quantizers whose class is written in Python: one of telens.pytorch's with `quantize`
// overridden

// Format, scaling mode and the comparison of quantizers come from the overridden class. Every copy
// calls the same Python object.
class PythonQuantizer final : public Quantizer {
 public:
  // object: an instance of a subclass of telens.pytorch's quantizers. Throws UsageError for another
  // one. With the GIL.
  explicit PythonQuantizer(pybind11::object object);

  using Quantizer::quantize;
  ScalingMode mode() const override { return mode_; }
  // Throws UsageError unless the Python method returns x quantized in this format, mode and these
  // orientations. Exceptions of the method propagate.
  QuantizedTensor quantize(const at::Tensor& x, Usage usage) const override;
  void quantize_into(const at::Tensor& x, QuantizedTensor& out) const override;
  void calibrate(const at::Tensor&) const override {}
  std::shared_ptr<Quantizer> copy() const override;
  bool quantizes_as(const Quantizer& other) const override;

  // Requires the GIL.
  pybind11::object object() const;

 private:
  // The Python object stores the requested orientations, so only one thread at a time may use it.
  struct Shared {
    std::shared_ptr<PyObject> object;
    std::mutex in_use;
  };

  PythonQuantizer(const PythonQuantizer& other);
  void check(const QuantizedTensor& made, const at::Tensor& x, Usage usage) const;

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<const CustomGemm>
      custom_gemm_;  // its qgemm; nullptr if the class does not define it
  ScalingMode mode_;
};

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

// Releases the GIL while waiting: the thread that holds the mutex may need it.
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
  // If the codes of several ranks are joined, they need a common scale, which an inherited cast
  // computes.
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

// ---- quantizers of TELens

py::object quantize(Quantizer& quantizer, const at::Tensor& tensor) {
  QuantizedTensor quantized = [&] {
    const WithoutGil no_gil;
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
  {
    const WithoutGil no_gil;
    const c10::AutoGradMode no_grad(false);
    quantizer.quantize_into(source, storage);
    bump_version(storage);
  }
  return target;
}

py::object make_empty(Quantizer& quantizer, const std::vector<std::int64_t>& shape,
                      at::ScalarType dtype, const py::object& device) {
  const auto target = device.is_none()
                          ? at::Device(at::kCPU)
                          : py::module_::import("torch").attr("device")(device).cast<at::Device>();
  // No reduction: other ranks may not call this function.
  const std::shared_ptr<Quantizer> alone = quantizer.copy();
  alone->reduce_amax_over(nullptr);
  return quantize(*alone, at::zeros(shape, at::TensorOptions().dtype(dtype).device(target)));
}

void set_usage(Quantizer& quantizer, std::optional<bool> rowwise, std::optional<bool> columnwise) {
  const Usage usage = quantizer.usage();
  quantizer.set_usage({rowwise.value_or(usage.rowwise), columnwise.value_or(usage.columnwise)});
}

std::shared_ptr<Quantizer> default_quantizer(const std::string& recipe_name,
                                             const std::string& tensor_name,
                                             std::optional<Fp8Format> format) {
  const std::shared_ptr<Recipe> recipe = default_recipe(recipe_name);
  if (format) recipe->fp8_format = *format;
  recipe->round_to_nearest();
  const std::optional<TensorName> tensor = tensor_from_name(tensor_name);
  if (!tensor || !is_gemm_input(*tensor)) {
    raise<UsageError>("'{}' is not a tensor that is cast; expected activation, weight or gradient",
                      tensor_name);
  }
  const TensorRole role = get_role(*tensor);
  if (recipe->as_delayed_scaling() != nullptr) {
    return std::make_shared<CurrentScalingQuantizer>(recipe->get_format(role));
  }
  return recipe->make_quantizer(role, nullptr);
}

// Returns the group over which a quantizer reduces amaxes; the default is all ranks.
ProcessGroupPtr reduction_group(const char* quantizer, bool with_amax_reduction,
                                const py::object& group) {
  if (!with_amax_reduction) return nullptr;
  if (!group.is_none()) return to_process_group(group, "amax_reduction_group");
  const py::object world = py::module_::import("torch.distributed").attr("group").attr("WORLD");
  if (world.is_none()) {
    raise<UsageError>(
        "{}: with_amax_reduction without an amax_reduction_group is over all ranks, but there is "
        "no process group; call torch.distributed.init_process_group first, or name a group",
        quantizer);
  }
  return to_process_group(world);
}

// An assignment writes into the memory that the layer's quantizer reads, so its next cast uses it.
void fill(const char* name, const at::Tensor& own, const at::Tensor& given) {
  if (!own.defined()) {
    raise<UsageError>("Float8Quantizer: it keeps no {} (it is an evaluation's)", name);
  }
  const c10::AutoGradMode no_grad(false);
  own.copy_(given.reshape(own.sizes()));
}

void bind_base(py::module_& module) {
  py::class_<Quantizer, std::shared_ptr<Quantizer>>(
      module, "Quantizer", "Turns a high-precision tensor into a QuantizedTensor.")
      .def(
          "__call__",
          [](const py::object& self, const at::Tensor& tensor) {
            return self.attr("quantize")(tensor);  // a subclass may have its own
          },
          py::arg("tensor"))
      .def("quantize", &quantize, py::arg("tensor"), "The tensor's QuantizedTensor.")
      .def("update_quantized", &update_quantized, py::arg("src"), py::arg("dst"),
           "Quantizes src into dst's own storage, and returns dst.")
      .def("make_empty", &make_empty, py::arg("shape"), py::kw_only(),
           py::arg("dtype") = at::kFloat, py::arg("device") = py::none(),
           "A QuantizedTensor of zeros.")
      .def("set_usage", &set_usage, py::kw_only(), py::arg("rowwise") = py::none(),
           py::arg("columnwise") = py::none(),
           "Sets the orientations to compute; None keeps the present setting.")
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

void bind_per_tensor(py::module_& module) {
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
      .def_property("scale", &DelayedScalingQuantizer::known_scale,
                    [](DelayedScalingQuantizer& quantizer, const at::Tensor& scale) {
                      fill("scale", quantizer.known_scale(), scale);
                    })
      .def_property("amax", &DelayedScalingQuantizer::running_amax,
                    [](DelayedScalingQuantizer& quantizer, const at::Tensor& amax) {
                      fill("amax", quantizer.running_amax(), amax);
                    });
  py::class_<CurrentScalingQuantizer, Quantizer, std::shared_ptr<CurrentScalingQuantizer>>(
      module, "Float8CurrentScalingQuantizer", "Per-tensor FP8 with a scale from its own amax.")
      .def(py::init([](FormatId format, const py::object&, bool rowwise, bool columnwise,
                       bool with_amax_reduction, const py::object& amax_reduction_group,
                       bool force_pow_2_scales, float amax_epsilon) {
             auto quantizer = std::make_shared<CurrentScalingQuantizer>(
                 format, CurrentScalingOptions{force_pow_2_scales, amax_epsilon},
                 Usage{rowwise, columnwise});
             quantizer->reduce_amax_over(reduction_group(
                 "Float8CurrentScalingQuantizer", with_amax_reduction, amax_reduction_group));
             return quantizer;
           }),
           py::arg("fp8_dtype"), py::arg("device") = py::none(), py::kw_only(),
           py::arg("rowwise") = true, py::arg("columnwise") = true,
           py::arg("with_amax_reduction") = false, py::arg("amax_reduction_group") = py::none(),
           py::arg("force_pow_2_scales") = false, py::arg("amax_epsilon") = 0.0F,
           "with_amax_reduction: the scale comes from the largest amax over the ranks of "
           "amax_reduction_group (None means every rank), which must quantize at the same time.");
}

// Parses Transformer Engine's names of the error that decides between scaling to 4 and to 6.
bool squares_errors(const std::string& mode) {
  if (mode == "MSE") return true;
  if (mode == "MAE") return false;
  raise<UsageError>("NVFP4Quantizer: nvfp4_4over6_err_mode is '{}'; expected 'MAE' or 'MSE'", mode);
}

std::shared_ptr<NVFP4Quantizer> make_nvfp4_quantizer(
    FormatId format, bool rowwise, bool columnwise, bool with_amax_reduction,
    const py::object& amax_reduction_group, bool with_rht, bool, bool two_dimensional,
    bool stochastic_rounding, bool random_signs, bool row_scaled, bool four_over_six,
    double largest_scale, const std::string& error) {
  if (format != FormatId::e2m1) {
    raise<UsageError>("NVFP4Quantizer: fp4_dtype is {}; expected E2M1", get_name(format));
  }
  BlockOptions options{.two_dimensional = two_dimensional,
                       .stochastic_rounding = stochastic_rounding,
                       .row_scaled = row_scaled};
  if (row_scaled && (with_rht || two_dimensional || stochastic_rounding || with_amax_reduction)) {
    raise<UsageError>(
        "NVFP4Quantizer: row_scaled_nvfp4 excludes with_rht, with_2d_quantization, "
        "stochastic_rounding and with_amax_reduction, as in Transformer Engine; switch them off");
  }
  if (with_rht) {
    options.hadamard_signs = random_signs ? kRandomHadamardSigns : std::uint16_t{0};
  }
  if (four_over_six) {
    if (with_rht || stochastic_rounding) {
      raise<UsageError>(
          "NVFP4Quantizer: nvfp4_use_4over6 excludes with_rht and stochastic_rounding; switch them "
          "off");
    }
    options.four_over_six = ops::check_four_over_six(largest_scale, squares_errors(error));
  }
  auto quantizer = std::make_shared<NVFP4Quantizer>(options, Usage{rowwise, columnwise});
  quantizer->reduce_amax_over(
      reduction_group("NVFP4Quantizer", with_amax_reduction, amax_reduction_group));
  return quantizer;
}

void bind_blockwise(py::module_& module) {
  py::enum_<ScaleRounding>(module, "ScaleRounding",
                           "How a value between two powers of two becomes an E8M0 scale.")
      .value("up", ScaleRounding::up)
      .value("floor", ScaleRounding::floor)
      .value("nearest", ScaleRounding::nearest);
  py::class_<MXFP8Quantizer, Quantizer, std::shared_ptr<MXFP8Quantizer>>(
      module, "MXFP8Quantizer", "FP8 with a power-of-two scale for every 32 elements.")
      .def(py::init([](FormatId format, bool rowwise, bool columnwise, bool two_dimensional,
                       ScaleRounding rounding) {
             return std::make_shared<MXFP8Quantizer>(
                 format,
                 BlockOptions{.two_dimensional = two_dimensional, .scale_rounding = rounding},
                 Usage{rowwise, columnwise});
           }),
           py::arg("fp8_dtype"), py::kw_only(), py::arg("rowwise") = true,
           py::arg("columnwise") = true, py::arg("with_2d_quantization") = false,
           py::arg("scale_rounding") = ScaleRounding::up,
           "with_2d_quantization: one scale for 32x32 elements. scale_rounding: up (Transformer "
           "Engine), floor (the OCP MX specification) or nearest.");
  py::class_<MXFP6Quantizer, Quantizer, std::shared_ptr<MXFP6Quantizer>>(
      module, "MXFP6Quantizer",
      "E3M2 or E2M3 with a power-of-two scale for every 32 elements, one code per byte. CPU only.")
      .def(py::init([](FormatId format, bool rowwise, bool columnwise, bool two_dimensional,
                       ScaleRounding rounding) {
             return std::make_shared<MXFP6Quantizer>(
                 format,
                 BlockOptions{.two_dimensional = two_dimensional, .scale_rounding = rounding},
                 Usage{rowwise, columnwise});
           }),
           py::arg("fp6_dtype"), py::kw_only(), py::arg("rowwise") = true,
           py::arg("columnwise") = true, py::arg("with_2d_quantization") = false,
           py::arg("scale_rounding") = ScaleRounding::up,
           "with_2d_quantization and scale_rounding: as in MXFP8Quantizer.");
  py::class_<Float8BlockQuantizer, Quantizer, std::shared_ptr<Float8BlockQuantizer>>(
      module, "Float8BlockQuantizer", "FP8 with an FP32 scale for 1x128 or 128x128 elements.")
      .def(
          py::init([](FormatId format, bool rowwise, bool columnwise, float amax_epsilon,
                      bool force_pow_2_scales, std::int64_t block_scaling_dim) {
            return std::make_shared<Float8BlockQuantizer>(
                format, block_scaling_dim,
                BlockOptions{.power_of_2_scales = force_pow_2_scales, .amax_epsilon = amax_epsilon},
                Usage{rowwise, columnwise});
          }),
          py::arg("fp8_dtype"), py::kw_only(), py::arg("rowwise") = true,
          py::arg("columnwise") = true, py::arg("amax_epsilon") = 0.0F,
          py::arg("force_pow_2_scales") = true, py::arg("block_scaling_dim") = 2,
          "block_scaling_dim: 1 (1x128) or 2 (128x128).");
  py::class_<NVFP4Quantizer, Quantizer, std::shared_ptr<NVFP4Quantizer>>(
      module, "NVFP4Quantizer",
      "E2M1 with an E4M3 scale for 16 elements under one FP32 scale of the tensor.")
      .def(py::init(&make_nvfp4_quantizer), py::arg("fp4_dtype") = FormatId::e2m1,
           py::arg("rowwise") = true, py::arg("columnwise") = true,
           py::arg("with_amax_reduction") = false, py::arg("amax_reduction_group") = py::none(),
           py::arg("with_rht") = false, py::arg("with_post_rht_amax") = false,
           py::arg("with_2d_quantization") = false, py::arg("stochastic_rounding") = false,
           py::kw_only(), py::arg("with_random_sign_mask") = true,
           py::arg("row_scaled_nvfp4") = false, py::arg("nvfp4_use_4over6") = false,
           py::arg("nvfp4_e4m3_max") = 448.0, py::arg("nvfp4_4over6_err_mode") = "MAE",
           "with_rht: the columnwise orientation is quantized after a random Hadamard transform, "
           "with a separate amax (so with_post_rht_amax has no effect); "
           "with_random_sign_mask=False omits the transform's signs. with_2d_quantization: one "
           "scale for 16x16 elements. with_amax_reduction: the tensor's scales use the largest "
           "amaxes over the ranks in amax_reduction_group (None means every rank), which must "
           "quantize at the same time. row_scaled_nvfp4: each row (columnwise: each column) has "
           "a separate FP32 scale instead of the tensor's; excludes the arguments above. "
           "nvfp4_use_4over6: blocks are scaled to 4 or to 6, whichever gives the smaller sum of "
           "magnitudes ('MAE') or squares ('MSE') of errors; nvfp4_e4m3_max, 448 or 256, is then "
           "the scale that the largest block gets if it is scaled to 6.")
      .def_property_readonly("row_scaled_nvfp4", [](const NVFP4Quantizer& quantizer) {
        return quantizer.options().row_scaled;
      });
}

}  // namespace

void bind_quantizers(py::module_& module) {
  bind_base(module);
  bind_per_tensor(module);
  bind_blockwise(module);
  py::class_<PythonQuantizer, Quantizer, std::shared_ptr<PythonQuantizer>>(
      module, "PythonQuantizer", "A layer's reference to a quantizer whose class is in Python.")
      .def(py::init<py::object>(), py::arg("quantizer"));
  module.def("recipe_names", &recipe_names);
  module.def(
      "default_quantizer", &default_quantizer, py::arg("recipe"), py::arg("tensor"),
      py::arg("fp8_format"),
      "Returns the quantizer of a tensor under the named recipe with its default options except "
      "the format (None keeps it), rounding to nearest. Delayed scaling takes the tensor's "
      "own amax.");
  module.def(
      "quantizer_like", [](const QuantizedTensor& tensor) { return quantizer_like(tensor); },
      py::arg("storage"),
      "The quantizer that makes tensors of this format, scaling and usage; per-tensor scales come "
      "from the tensor's own amax.");
}

py::object from_quantizer(const Quantizer* quantizer) {
  if (quantizer == nullptr) {
    return py::none();
  }
  const std::shared_ptr<Quantizer> copy = quantizer->copy();
  copy->set_usage({.rowwise = true, .columnwise = true});
  return own_quantizer(copy);
}

py::object own_quantizer(const std::shared_ptr<Quantizer>& quantizer) {
  const auto* const python = dynamic_cast<const PythonQuantizer*>(quantizer.get());
  return python != nullptr ? python->object() : py::cast(quantizer);
}

}  // namespace telens::python
