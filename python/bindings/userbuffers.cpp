#include "core/distributed/userbuffers.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "core/distributed/compare_ranks.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"
#include "python/bindings/process_group.h"

namespace telens::python {

namespace py = pybind11;

namespace {

// The names used in ub_cfgs.
py::dict written(const OverlapSettings& settings) {
  py::dict made;
  made["method"] = std::string(get_name(settings.method));
  made["is_reduce_scatter"] = settings.is_reduce_scatter;
  made["num_sm"] = settings.num_sm;
  made["cga_size"] = settings.cga_size;
  made["set_sm_margin"] = settings.set_sm_margin;
  made["num_splits"] = settings.num_splits;
  made["aggregate"] = settings.aggregate;
  made["atomic_gemm"] = settings.atomic_gemm;
  made["use_ce"] = settings.use_ce;
  made["fp8_buf"] = settings.fp8_buf;
  made["comm_priority"] = settings.comm_priority;
  made["gemm_priority"] = settings.gemm_priority;
  made["pipeline_rs_overlap_first_gemm"] = settings.pipeline_rs_overlap_first_gemm;
  return made;
}

py::dict all_settings(bool fp8) {
  py::dict made;
  const auto buffers = userbuffers();
  if (!buffers || !buffers->by_precision[fp8]) return made;
  for (const auto& [name, settings] : *buffers->by_precision[fp8]) {
    made[py::str(name)] = written(settings);
  }
  return made;
}

using Precisions = std::vector<std::pair<bool, OverlapConfig>>;

std::vector<std::string> initialize(std::vector<std::int64_t> shape, std::int64_t tp_size,
                                    std::int64_t world_size, const Precisions& precisions) {
  UserbufferArguments arguments{
      .shape = std::move(shape), .tp_size = tp_size, .world_size = world_size, .precisions = {}};
  for (const auto& [fp8, config] : precisions) arguments.precisions.push_back({fp8, config});
  return initialize_userbuffers(arguments);
}

void compare_settings(const std::string& text, const py::object& group) {
  const ProcessGroupPtr ranks = to_process_group(group);
  const WithoutGil no_gil;
  static const std::string subject = "initialize_ub";
  compare_over_ranks({.subject = subject,
                      .group_name = "all ranks",
                      .text = text,
                      .hint = "call it with the same arguments on all of them"},
                     ranks);
}

}  // namespace

void bind_userbuffers(py::module_& module) {
  module.def(
      "initialize_ub", &initialize, py::arg("shape"), py::arg("tp_size"), py::arg("world_size"),
      py::arg("precisions"),
      "Configures the overlaps from (FP8, ub_cfgs) pairs, one per precision. Returns warnings.");
  module.def("compare_ub", &compare_settings, py::arg("text"), py::arg("group"),
             "Raises UsageError if ranks of a group pass different texts.");
  module.def("destroy_ub", &destroy_userbuffers, "Clears the overlap settings.");
  module.def(
      "is_ub_initialized", [] { return userbuffers() != nullptr; },
      "Whether initialize_ub has been called, and destroy_ub has not since.");
  module.def("ub_settings", &all_settings, py::arg("fp8"),
             "Returns {GEMM: settings} for a precision, with defaults filled in.");
}

}  // namespace telens::python
