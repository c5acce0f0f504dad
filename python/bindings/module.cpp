// The extension module telens._C.
#include <pybind11/pybind11.h>

#include "python/bindings/autocast.h"
#include "python/bindings/debug.h"
#include "python/bindings/errors.h"
#include "python/bindings/features.h"
#include "python/bindings/gemm.h"
#include "python/bindings/gil.h"
#include "python/bindings/layer_calls.h"
#include "python/bindings/modules.h"
#include "python/bindings/plan.h"
#include "python/bindings/quantized_tensor.h"
#include "python/bindings/quantizers.h"
#include "python/bindings/run_reader.h"
#include "python/bindings/statistics.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "The C++ side of TELens.";
  telens::python::spare_exits();
  telens::python::bind_errors(module);
  telens::python::bind_quantized_tensor(module);
  telens::python::bind_quantizers(module);
  telens::python::bind_recipes(module);
  telens::python::bind_autocast(module);
  telens::python::bind_modules(module);
  telens::python::bind_debug(module);
  telens::python::bind_plan(module);
  telens::python::bind_features(module);
  telens::python::bind_gemm(module);
  telens::python::bind_statistics(module);
  telens::python::bind_layer_calls(module);
  telens::python::bind_run_reader(module);
}
