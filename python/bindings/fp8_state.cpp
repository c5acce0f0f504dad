#include "python/bindings/fp8_state.h"

#include <fmt/format.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/modules/layer/linear_layer.h"
#include "core/quantization/extra_state.h"
#include "python/bindings/quantizers.h"

namespace telens::python {

namespace py = pybind11;

namespace {

using Window = std::pair<at::Tensor, at::Tensor>;

// Returns (amax_history [length, slots], scale [slots]) of the layer's GEMMs without copying.
std::optional<Window> amax_window(ModuleAdapter& adapter, bool backward) {
  const std::vector<LayerQuantization*> gemms = adapter.module().quantizations();
  if (gemms.empty()) return std::nullopt;
  const AmaxWindow& window = gemms.front()->delayed_scaling().module().joined(backward);
  if (!window.defined()) return std::nullopt;
  return Window(window.amax_history, window.scale);
}

// The columns for one GEMM in the layer's amax window.
AmaxWindow part(const Window& all, std::size_t gemm, std::int64_t slots) {
  const std::int64_t first = static_cast<std::int64_t>(gemm) * slots;
  return {all.first.narrow(1, first, slots), all.second.narrow(0, first, slots)};
}

// Writes the values as one of our checkpoints, then restores that checkpoint.
void set_amax_windows(ModuleAdapter& adapter, const Window& forward, const Window& backward,
                      const std::string& key) {
  const std::vector<LayerQuantization*> gemms = adapter.module().quantizations();
  const auto source = [&](std::size_t gemm) {
    return gemms.size() == 1 ? key : fmt::format("{}, GEMM {}", key, gemm);
  };
  std::vector<at::Tensor> parts;
  for (std::size_t gemm = 0; gemm < gemms.size(); ++gemm) {
    DelayedScalingState state;
    state.window(false) = part(forward, gemm, kForwardRoles);
    state.window(true) = part(backward, gemm, kBackwardRoles);
    parts.push_back(get_bytes(state));
    state_from_bytes(parts.back(), source(gemm));  // throws before any GEMM changes
  }
  for (std::size_t gemm = 0; gemm < gemms.size(); ++gemm) {
    gemms[gemm]->set_extra_state(parts[gemm], source(gemm));
  }
}

std::shared_ptr<const Recipe> newest_recipe(ModuleAdapter& adapter) {
  const std::vector<LayerQuantization*> gemms = adapter.module().quantizations();
  return gemms.empty() ? nullptr : gemms.front()->recipe();
}

// In slot order; None for a tensor that the recipe keeps in high precision.
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
           py::arg("key") = "_extra_state",
           "Sets the values of the forward and the backward, each in the form that amax_window "
           "returns. Messages begin with the key.")
      .def(
          "newest_recipe",
          [](ModuleAdapter& self) { return std::const_pointer_cast<Recipe>(newest_recipe(self)); },
          "The recipe of the newest forward under one, or None.")
      .def("quantizers", &quantizers, py::arg("backward"),
           "Returns the quantizers of that recipe in slot order.");
}

}  // namespace telens::python
