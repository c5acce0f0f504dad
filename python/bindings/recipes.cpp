#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <tuple>

#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"
#include "core/quantization/recipe.h"
#include "python/bindings/autocast.h"

namespace telens::python {

namespace py = pybind11;

namespace {

using Precision = std::tuple<bool, bool, bool>;
using Scaling = std::tuple<bool, float>;  // power_2_scale, amax_epsilon

Recipe::OverrideLinearPrecision override_precision(const Precision& gemms) {
  return {std::get<0>(gemms), std::get<1>(gemms), std::get<2>(gemms)};
}

CurrentScalingOptions scaling_options(const Scaling& options) {
  return {std::get<0>(options), std::get<1>(options)};
}

std::shared_ptr<Recipe> make_delayed_scaling(Fp8Format format, std::int64_t margin,
                                             std::int64_t amax_history_len, AmaxAlgorithm algorithm,
                                             DelayedScaling::AmaxFunction amax_function,
                                             DelayedScaling::ScaleFunction scale_function,
                                             bool reduce_amax, bool power_of_2_scale,
                                             const Precision& gemms) {
  auto recipe = std::make_shared<DelayedScaling>();
  recipe->fp8_format = format;
  recipe->override_linear_precision = override_precision(gemms);
  recipe->margin = margin;
  recipe->amax_history_len = amax_history_len;
  if (amax_function) {
    recipe->amax_compute_algo = std::move(amax_function);
  } else {
    recipe->amax_compute_algo = algorithm;
  }
  recipe->scaling_factor_compute_algo = std::move(scale_function);
  recipe->reduce_amax = reduce_amax;
  recipe->power_of_2_scale = power_of_2_scale;
  return recipe;
}

std::shared_ptr<Recipe> make_current_scaling(Fp8Format format, const Scaling& input,
                                             const Scaling& weight, const Scaling& gradient,
                                             const Precision& gemms) {
  auto recipe = std::make_shared<Float8CurrentScaling>();
  recipe->fp8_format = format;
  recipe->override_linear_precision = override_precision(gemms);
  recipe->fp8_quant_fwd_inp = scaling_options(input);
  recipe->fp8_quant_fwd_weight = scaling_options(weight);
  recipe->fp8_quant_bwd_grad = scaling_options(gradient);
  return recipe;
}

// Delayed scaling has no history for a weight that is stored in low precision: its own amax serves.
std::shared_ptr<Quantizer> make_weight_quantizer(const Recipe& recipe) {
  if (recipe.as_delayed_scaling() != nullptr) {
    return std::make_shared<CurrentScalingQuantizer>(recipe.format_of(TensorRole::weight));
  }
  return recipe.make_quantizer(TensorRole::weight, nullptr);
}

}  // namespace

void bind_recipes(py::module_& module) {
  py::enum_<Fp8Format>(module, "Fp8Format")
      .value("E4M3", Fp8Format::e4m3)
      .value("E5M2", Fp8Format::e5m2)
      .value("HYBRID", Fp8Format::hybrid);
  py::enum_<AmaxAlgorithm>(module, "AmaxAlgorithm")
      .value("max", AmaxAlgorithm::max)
      .value("most_recent", AmaxAlgorithm::most_recent);
  py::class_<Recipe, std::shared_ptr<Recipe>>(
      module, "Recipe", "A recipe of the C++ core; made by telens.common.recipe.")
      .def_property_readonly("name", &Recipe::name)
      .def("make_weight_quantizer", &make_weight_quantizer,
           "What makes a weight that is stored in low precision.");
  module.def("make_delayed_scaling", &make_delayed_scaling, py::kw_only(), py::arg("fp8_format"),
             py::arg("margin"), py::arg("amax_history_len"), py::arg("algorithm"),
             py::arg("amax_function"), py::arg("scale_function"), py::arg("reduce_amax"),
             py::arg("power_of_2_scale"), py::arg("override_linear_precision"));
  module.def("make_current_scaling", &make_current_scaling, py::kw_only(), py::arg("fp8_format"),
             py::arg("input"), py::arg("weight"), py::arg("gradient"),
             py::arg("override_linear_precision"));
}

}  // namespace telens::python
