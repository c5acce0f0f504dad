#include "core/distributed/collectives.h"

#include <fmt/format.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

#include "core/distributed/compare_ranks.h"
#include "core/ops/tensor_digest.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"
#include "python/bindings/process_group.h"

namespace telens::python {

namespace py = pybind11;

namespace {

// The whole tensor is built from parts of the ranks' copies, so all ranks must hold the same
// values. Their bits are compared if the text is new.
void compare_activation(const std::string& text, const at::Tensor& x, const py::object& group) {
  const ProcessGroupPtr ranks = to_process_group(group);
  const WithoutGil no_gil;
  static const std::string subject = "checkpoint";
  const auto contents = [&] {
    const at::Tensor digest = ops::compute_digest(x).cpu();
    const auto word = [&](std::int64_t i) {
      return static_cast<std::uint64_t>(digest[i].item<std::int64_t>());
    };
    return fmt::format(" with the digest {:016x}{:016x}", word(0), word(1));
  };
  compare_once_over_ranks(
      {.subject = subject,
       .group_name = "tp_group",
       .text = text,
       .hint = "distribute_saved_activations is for a tensor that all of them have alike; leave it "
               "out if each rank holds its own part, for example under sequence_parallel",
       .details = contents},
      ranks);
}

}  // namespace

void bind_collectives(py::module_& module) {
  module.def(
      "collective_counts",
      [] {
        const CollectiveCounts counts = collective_counts();
        return std::pair(counts.collectives, counts.bytes);
      },
      "Returns (collectives, bytes passed to them) of this process's parallel layers so far.");
  module.def("compare_activation", &compare_activation, py::arg("text"), py::arg("tensor"),
             py::arg("group"),
             "Raises UsageError if ranks pass different texts, or different bits for a new text.");
}

}  // namespace telens::python
