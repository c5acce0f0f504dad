#include "core/modules/moe/moe_dispatcher.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "python/bindings/gil.h"
#include "python/bindings/module.h"
#include "python/bindings/process_group.h"

namespace telens::python {

namespace py = pybind11;

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
