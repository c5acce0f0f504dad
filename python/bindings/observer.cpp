// The extension module telens._observer: debug sessions over models of any framework module, on
// LibTorch's stable ABI. telens._C has the same functions and the module core.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/quantization/quantizer.h"
#include "hooks/stable_abi/python_functions.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"
#include "python/bindings/quantizers.h"

namespace telens::python {

namespace py = pybind11;

// Layers of the module core have quantizers; attached models have none.
py::object from_quantizer(const Quantizer*) { return py::none(); }

namespace {

std::vector<std::uint8_t> get_random_state() {
  const WithGil gil;
  const py::object state = py::module_::import("torch").attr("get_rng_state")();
  const auto bytes = state.attr("numpy")().attr("tobytes")().cast<std::string>();
  return {bytes.begin(), bytes.end()};
}

void set_random_state(const std::vector<std::uint8_t>& state) {
  const WithGil gil;
  const py::module_ torch = py::module_::import("torch");
  const py::bytearray bytes(reinterpret_cast<const char*>(state.data()), state.size());
  torch.attr("set_rng_state")(
      torch.attr("frombuffer")(bytes, py::arg("dtype") = torch.attr("uint8")));
}

}  // namespace
}  // namespace telens::python

PYBIND11_MODULE(_observer, module) {
  namespace py = pybind11;
  module.doc() = "The C++ side of TELens without the FP8 module core.";
  telens::python::spare_exits();
  telens::python::bind_errors(module);
  py::class_<telens::Quantizer, std::shared_ptr<telens::Quantizer>>(module, "Quantizer");
  telens::python::bind_quantized_storage(module);
  telens::python::bind_debug(module);
  telens::python::bind_plan(module);
  telens::python::bind_features(module);
  telens::python::bind_statistics(module);
  telens::python::bind_layer_calls(module);
  telens::python::bind_run_reader(module);
  // Tensors on other devices are copied to the host.
  module.def(
      "default_device", [](bool) { return std::string("cpu"); }, py::arg("has_gpu"));
  module.def("is_fp8_enabled", [] { return false; });
  telens::set_torch_version(py::module_::import("torch")
                                .attr("__version__")
                                .attr("split")("+")
                                .cast<py::list>()[0]
                                .cast<std::string>());
  telens::set_random_state_functions(
      {telens::python::get_random_state, telens::python::set_random_state});
  telens::python::raise_usage_errors(module);
}
