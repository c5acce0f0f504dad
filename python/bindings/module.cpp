// The extension module telens._C.
#include <pybind11/pybind11.h>

#include "python/bindings/gil.h"
#include "python/bindings/module.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "The C++ side of TELens.";
  telens::python::spare_exits();
  telens::python::bind_errors(module);
  telens::python::translate_backward_errors();
  telens::python::bind_quantized_tensor(module);
  telens::python::bind_quantizers(module);
  telens::python::bind_recipes(module);
  telens::python::bind_autocast(module);
  telens::python::bind_modules(module);
  telens::python::bind_moe_dispatcher(module);
  telens::python::bind_foreign_tensors(module);
  telens::python::bind_foreign_module(module);
  telens::python::bind_debug(module);
  telens::python::bind_plan(module);
  telens::python::bind_features(module);
  telens::python::bind_gemm(module);
  telens::python::bind_collectives(module);
  telens::python::bind_userbuffers(module);
  telens::python::bind_statistics(module);
  telens::python::bind_layer_calls(module);
  telens::python::bind_run_reader(module);
  telens::python::raise_usage_errors(module);
}
