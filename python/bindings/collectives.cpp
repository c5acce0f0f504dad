#include "core/distributed/collectives.h"

#include <pybind11/stl.h>

#include <utility>

#include "python/bindings/module.h"

namespace telens::python {

namespace py = pybind11;

void bind_collectives(py::module_& module) {
  module.def(
      "collective_counts",
      [] {
        const CollectiveCounts counts = collective_counts();
        return std::pair(counts.collectives, counts.bytes);
      },
      "(collectives, bytes handed to them) of this process's divided layers so far.");
}

}  // namespace telens::python
