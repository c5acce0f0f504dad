#include "python/bindings/module.h"

#include <pybind11/stl.h>

#include <string>
#include <utility>

#include "core/gemm/gemm.h"
#include "core/ops/gemm_choice.h"

namespace telens::python {

namespace py = pybind11;

void bind_gemm(py::module_& module) {
  module.def(
      "newest_gemm_choice",
      [] {
        const ops::GemmChoice choice = ops::newest_gemm_choice();
        return std::pair(std::string(choice.kernel), std::string(choice.reason));
      },
      "(kernel, reason) of the newest GEMM of this thread: which kernel ran, and why not the "
      "fastest one; an empty reason: it is the fastest one.");
  module.def(
      "gemm_counts",
      [] {
        const GemmCounts counts = gemm_counts();
        return std::pair(counts.quantized, counts.high_precision);
      },
      "(quantized, in high precision): the GEMMs that this process has run so far.");
}

}  // namespace telens::python
