#include "python/bindings/fp8_state.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/modules/layer/linear_layer.h"
#include "core/quantization/extra_state.h"
#include "python/bindings/quantizers.h"

namespace telens::python {

namespace py = pybind11;

namespace {

using Window = std::pair<at::Tensor, at::Tensor>;

// (amax_history [length, slots], scale [slots]) of all GEMMs; the tensors themselves.
std::optional<Window> amax_window(ModuleAdapter& adapter, bool backward) {
  const std::vector<LayerQuantization*> gemms = adapter.module().quantizations();
  if (gemms.empty()) return std::nullopt;
  const AmaxWindow& window = gemms.front()->delayed_scaling().module().joined(backward);
  if (!window.defined()) return std::nullopt;
  return Window(window.amax_history, window.scale);
}

// The columns of one GEMM in the window of all.
AmaxWindow part(const Window& all, std::size_t gemm, std::int64_t slots) {
  const std::int64_t first = static_cast<std::int64_t>(gemm) * slots;
  return {all.first.narrow(1, first, slots), all.second.narrow(0, first, slots)};
}

// As a checkpoint of ours is restored, for which they are written as one.
void set_amax_windows(ModuleAdapter& adapter, const Window& forward, const Window& backward) {
  const std::vector<LayerQuantization*> gemms = adapter.module().quantizations();
  for (std::size_t gemm = 0; gemm < gemms.size(); ++gemm) {
    DelayedScalingState state;
    state.window(false) = part(forward, gemm, kForwardRoles);
    state.window(true) = part(backward, gemm, kBackwardRoles);
    gemms[gemm]->set_extra_state(get_bytes(state));
  }
}

std::shared_ptr<const Recipe> newest_recipe(ModuleAdapter& adapter) {
  const std::vector<LayerQuantization*> gemms = adapter.module().quantizations();
  return gemms.empty() ? nullptr : gemms.front()->recipe();
}

// In the order of the slots; None for what a recipe leaves in high precision.
py::list quantizers(ModuleAdapter& adapter, bool backward) {
  py::list all;
  for (LayerQuantization* gemm : adapter.module().quantizations()) {
    if (gemm->recipe() == nullptr) continue;
    const LayerQuantizers& own = gemm->newest_quantizers();
    for (int index = 0; index < kRoles; ++index) {
      const auto role = static_cast<TensorRole>(index);
      if (is_backward(role) == backward) all.append(own_quantizer(own[role]));
    }
  }
  return all;
}

}  // namespace

void bind_fp8_state(AdapterClass& adapter) {
  adapter
      .def_property_readonly(
          "num_gemms", [](ModuleAdapter& self) { return self.module().quantizations().size(); },
          "Groups of slots: the linear layers of the module itself, or an attention's tensors")
      .def("amax_window", &amax_window, py::arg("backward"),
           "(amax_history, scale) of delayed scaling; None before there are any.")
      .def("set_amax_windows", &set_amax_windows, py::arg("forward"), py::arg("backward"),
           "Takes over the values of both directions, each as amax_window returns it.")
      .def(
          "newest_recipe",
          [](ModuleAdapter& self) { return std::const_pointer_cast<Recipe>(newest_recipe(self)); },
          "The recipe of the newest forward under one, or None.")
      .def("quantizers", &quantizers, py::arg("backward"), "Those of that recipe, slot by slot.");
}

}  // namespace telens::python
