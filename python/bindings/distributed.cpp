#include "python/bindings/distributed.h"

#include <fmt/format.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <utility>

#include "core/distributed/collectives.h"
#include "core/distributed/compare_ranks.h"
#include "core/distributed/userbuffers.h"
#include "core/modules/moe/moe_dispatcher.h"
#include "core/ops/tensor_digest.h"
#include "python/bindings/fields.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"

namespace telens::python {

namespace py = pybind11;

// ---- process groups

ProcessGroupPtr to_process_group(const py::object& group, const char* argument) {
  if (group.is_none()) {
    return nullptr;
  }
  try {
    auto counted = group.cast<c10::intrusive_ptr<c10d::ProcessGroup>>();
    c10d::ProcessGroup* plain = counted.get();
    return ProcessGroupPtr(plain, [counted](c10d::ProcessGroup*) mutable { counted.reset(); });
  } catch (const py::cast_error&) {
    raise_wrong_type(argument, "a torch.distributed.ProcessGroup or None", group);
  }
}

py::object from_process_group(c10d::ProcessGroup* group) {
  if (group == nullptr) {
    return py::none();
  }
  return py::cast(c10::intrusive_ptr<c10d::ProcessGroup>::unsafe_reclaim_from_nonowning(group));
}

// ---- collectives

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

// ---- userbuffers

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

// ---- the dispatch of tokens to experts

void bind_moe_dispatcher(py::module_& module) {
  py::class_<WayBack>(module, "WayBack",
                      "The routing of a dispatch, which returns rows to "
                      "their tokens.");
  py::class_<MoEDispatcher>(module, "MoEDispatcher")
      .def(py::init([](std::int64_t num_experts, const py::object& group) {
             return MoEDispatcher(num_experts, to_process_group(group, "ep_group"));
           }),
           py::arg("num_experts"), py::arg("ep_group"))
      .def_property_readonly("num_local_experts", &MoEDispatcher::num_local_experts)
      .def_property_readonly("first_expert", &MoEDispatcher::first_expert)
      .def(
          "dispatch",
          [](MoEDispatcher& self, const at::Tensor& hidden, const at::Tensor& routing_map,
             const std::optional<at::Tensor>& probs, const std::optional<at::Tensor>& weights) {
            DispatchedTokens made;
            {
              const WithoutGil no_gil;
              made = self.dispatch(hidden, routing_map, probs);
            }
            made.way_back.weights = weights;
            return std::tuple(made.tokens,
                              made.probs.defined() ? std::optional(made.probs) : std::nullopt,
                              made.m_splits, made.way_back);
          },
          py::arg("hidden"), py::arg("routing_map"), py::arg("probs"), py::arg("weights"))
      .def("combine", &MoEDispatcher::combine, py::arg("rows"), py::arg("way_back"),
           py::call_guard<WithoutGil>());
}

}  // namespace telens::python
