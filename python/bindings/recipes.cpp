#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "core/modules/shared/recomputation.h"
#include "core/quantization/autocast.h"
#include "core/quantization/block_scaling.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"
#include "core/quantization/layer_quantization.h"
#include "core/quantization/recipe.h"
#include "python/bindings/distributed.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"
#include "python/bindings/module_adapter.h"

namespace telens::python {

namespace py = pybind11;

// ---- recipes

namespace {

// The parameters of fprop, dgrad and wgrad.
using Precision = std::tuple<bool, bool, bool>;
using SplitAccumulators = std::tuple<bool, bool, bool>;
using Scaling = std::tuple<bool, float>;  // power_2_scale, amax_epsilon

Recipe::OverrideLinearPrecision override_precision(const Precision& gemms) {
  return {std::get<0>(gemms), std::get<1>(gemms), std::get<2>(gemms)};
}

void set_split_accumulators(Recipe& recipe, const SplitAccumulators& split) {
  recipe.fp8_gemm_fprop.use_split_accumulator = std::get<0>(split);
  recipe.fp8_gemm_dgrad.use_split_accumulator = std::get<1>(split);
  recipe.fp8_gemm_wgrad.use_split_accumulator = std::get<2>(split);
}

CurrentScalingOptions scaling_options(const Scaling& options) {
  return {std::get<0>(options), std::get<1>(options)};
}

std::shared_ptr<Recipe> make_delayed_scaling(
    Fp8Format format, std::int64_t margin, std::int64_t amax_history_len, std::int64_t interval,
    AmaxAlgorithm algorithm, DelayedScaling::AmaxFunction amax_function,
    DelayedScaling::ScaleFunction scale_function, bool reduce_amax, bool power_of_2_scale,
    const SplitAccumulators& split, const Precision& gemms) {
  auto recipe = std::make_shared<DelayedScaling>();
  set_split_accumulators(*recipe, split);
  recipe->fp8_format = format;
  recipe->override_linear_precision = override_precision(gemms);
  recipe->margin = margin;
  recipe->amax_history_len = amax_history_len;
  recipe->interval = interval;
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
                                             const SplitAccumulators& split,
                                             const Precision& gemms) {
  auto recipe = std::make_shared<Float8CurrentScaling>();
  set_split_accumulators(*recipe, split);
  recipe->fp8_format = format;
  recipe->override_linear_precision = override_precision(gemms);
  recipe->fp8_quant_fwd_inp = scaling_options(input);
  recipe->fp8_quant_fwd_weight = scaling_options(weight);
  recipe->fp8_quant_bwd_grad = scaling_options(gradient);
  return recipe;
}

std::shared_ptr<Recipe> make_mxfp8_block_scaling(Fp8Format format, std::int64_t margin,
                                                 bool enable_2d_quantization,
                                                 const Precision& gemms) {
  auto recipe = std::make_shared<MXFP8BlockScaling>();
  recipe->fp8_format = format;
  recipe->margin = margin;
  recipe->enable_2d_quantization = enable_2d_quantization;
  recipe->override_linear_precision = override_precision(gemms);
  return recipe;
}

std::shared_ptr<Recipe> make_mxfp6_block_scaling(FormatId element, bool enable_2d_quantization,
                                                 const Precision& gemms) {
  auto recipe = std::make_shared<MXFP6BlockScaling>(element);
  recipe->enable_2d_quantization = enable_2d_quantization;
  recipe->override_linear_precision = override_precision(gemms);
  return recipe;
}

std::shared_ptr<Recipe> make_float8_block_scaling(Fp8Format format, const Scaling& input,
                                                  const Scaling& weight, const Scaling& gradient,
                                                  const std::array<std::int64_t, 3>& dimensions,
                                                  const SplitAccumulators& split,
                                                  const Precision& gemms) {
  auto recipe = std::make_shared<Float8BlockScaling>();
  set_split_accumulators(*recipe, split);
  recipe->fp8_format = format;
  recipe->fp8_quant_fwd_inp = scaling_options(input);
  recipe->fp8_quant_fwd_weight = scaling_options(weight);
  recipe->fp8_quant_bwd_grad = scaling_options(gradient);
  recipe->x_block_scaling_dim = dimensions[0];
  recipe->w_block_scaling_dim = dimensions[1];
  recipe->grad_block_scaling_dim = dimensions[2];
  recipe->override_linear_precision = override_precision(gemms);
  return recipe;
}

NVFP4BlockScaling::Scope get_scope(const std::string& name) {
  using Scope = NVFP4BlockScaling::Scope;
  if (name == "none") return Scope::none;
  if (name == "weights") return Scope::weights;
  if (name == "activations") return Scope::activations;
  if (name == "all") return Scope::all;
  raise<UsageError>("unknown scope '{}'; expected none, weights, activations or all", name);
}

// Scopes of nvfp4_4over6 and of its largest scale 256, and whether errors are squared.
using FourOverSixChoice = std::tuple<std::string, std::string, bool>;

std::shared_ptr<Recipe> make_nvfp4_block_scaling(bool disable_rht, bool disable_stochastic_rounding,
                                                 bool disable_2d_quantization,
                                                 bool row_scaled_activation,
                                                 const FourOverSixChoice& four_over_six,
                                                 const Precision& gemms) {
  auto recipe = std::make_shared<NVFP4BlockScaling>();
  recipe->disable_rht = disable_rht;
  recipe->disable_stochastic_rounding = disable_stochastic_rounding;
  recipe->disable_2d_quantization = disable_2d_quantization;
  recipe->row_scaled_activation = row_scaled_activation;
  const auto& [scope, scope_of_256, squares_errors] = four_over_six;
  recipe->four_over_six = get_scope(scope);
  recipe->four_over_six_to_256 = get_scope(scope_of_256);
  recipe->four_over_six_squares_errors = squares_errors;
  recipe->check();
  recipe->override_linear_precision = override_precision(gemms);
  return recipe;
}

// (tensor type, module type, layer) -> a quantizer, None for high precision, or a recipe of delayed
// scaling.
using PythonAnswer = std::variant<std::shared_ptr<Quantizer>, std::shared_ptr<Recipe>>;
using PythonFactory = std::function<PythonAnswer(std::string, std::string, std::string)>;

CustomRecipe::Answer get_answer(const PythonAnswer& made) {
  if (const auto* quantizer = std::get_if<std::shared_ptr<Quantizer>>(&made)) return *quantizer;
  return std::dynamic_pointer_cast<const DelayedScaling>(std::get<std::shared_ptr<Recipe>>(made));
}

std::shared_ptr<Recipe> make_custom_recipe(PythonFactory factory, Fp8Format format,
                                           const Precision& gemms) {
  auto recipe = std::make_shared<CustomRecipe>();
  recipe->fp8_format = format;
  recipe->qfactory = [factory = std::move(factory)](const QuantizerRole& role) {
    return get_answer(factory(std::string(get_name(role.tensor)), std::string(role.module_type),
                              std::string(role.layer)));
  };
  recipe->override_linear_precision = override_precision(gemms);
  return recipe;
}

// Delayed scaling keeps no history for a weight stored in low precision: its current amax is used.
std::shared_ptr<Quantizer> make_weight_quantizer(const Recipe& recipe) {
  if (recipe.as_delayed_scaling() != nullptr) {
    return std::make_shared<CurrentScalingQuantizer>(recipe.get_format(TensorRole::weight));
  }
  if (const auto* custom = dynamic_cast<const CustomRecipe*>(&recipe)) {
    const CustomRecipe::Answer answer = custom->qfactory({TensorRole::weight, "linear", {}});
    if (const auto* request = std::get_if<std::shared_ptr<const DelayedScaling>>(&answer)) {
      return make_weight_quantizer(**request);
    }
    return CustomRecipe::make_answered(answer, TensorRole::weight, nullptr);
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
      .def_readwrite("dequantized_backward", &Recipe::dequantized_backward,
                     "Whether a backward in high precision multiplies the values of fprop's codes.")
      .def_readwrite("fp8_dpa", &Recipe::fp8_dpa, "Whether attention casts its tensors.")
      .def_readwrite("fp8_mha", &Recipe::fp8_mha,
                     "Whether projections around an attention take its codes.")
      .def("make_weight_quantizer", &make_weight_quantizer,
           "Returns the quantizer for a weight stored in low precision; None if it stays in high "
           "precision.");
  module.def("make_delayed_scaling", &make_delayed_scaling, py::arg("fp8_format"),
             py::arg("margin"), py::arg("amax_history_len"), py::arg("interval"),
             py::arg("algorithm"), py::arg("amax_function"), py::arg("scale_function"),
             py::arg("reduce_amax"), py::arg("power_of_2_scale"), py::arg("split_accumulators"),
             py::arg("override_linear_precision"));
  module.def("make_current_scaling", &make_current_scaling, py::arg("fp8_format"), py::arg("input"),
             py::arg("weight"), py::arg("gradient"), py::arg("split_accumulators"),
             py::arg("override_linear_precision"));
  module.def("make_mxfp8_block_scaling", &make_mxfp8_block_scaling, py::arg("fp8_format"),
             py::arg("margin"), py::arg("enable_2d_quantization"),
             py::arg("override_linear_precision"));
  module.def("make_mxfp6_block_scaling", &make_mxfp6_block_scaling, py::arg("element"),
             py::arg("enable_2d_quantization"), py::arg("override_linear_precision"));
  module.def("make_float8_block_scaling", &make_float8_block_scaling, py::arg("fp8_format"),
             py::arg("input"), py::arg("weight"), py::arg("gradient"), py::arg("dimensions"),
             py::arg("split_accumulators"), py::arg("override_linear_precision"));
  module.def("make_nvfp4_block_scaling", &make_nvfp4_block_scaling, py::arg("disable_rht"),
             py::arg("disable_stochastic_rounding"), py::arg("disable_2d_quantization"),
             py::arg("row_scaled_activation"), py::arg("four_over_six"),
             py::arg("override_linear_precision"));
  module.def("make_custom_recipe", &make_custom_recipe, py::arg("qfactory"), py::arg("fp8_format"),
             py::arg("override_linear_precision"));
}

// ---- autocast and recomputation

namespace {

using Mode = RecomputationScope::Mode;

// A region that Python enters and leaves.
class AutocastRegion {
 public:
  explicit AutocastRegion(AutocastOptions options) : autocast_(std::move(options)) {}
  void exit() {
    const WithoutGil no_gil;  // an amax reduction waits for other ranks
    autocast_.exit();
  }
  void abandon() { autocast_.abandon(); }

 private:
  Autocast autocast_;
};

std::unique_ptr<AutocastRegion> enter_autocast(bool enabled, bool calibrating,
                                               std::shared_ptr<Recipe> recipe,
                                               const py::object& group, bool updates_scales) {
  return std::make_unique<AutocastRegion>(
      AutocastOptions{enabled, calibrating, std::move(recipe),
                      to_process_group(group, "amax_reduction_group"), updates_scales});
}

// The Python side of a recomputation scope: a context manager.
class TapeScope {
 public:
  TapeScope(std::shared_ptr<RecomputationTape> tape, Mode mode)
      : tape_(std::move(tape)), mode_(mode) {}
  void enter() { scope_.emplace(tape_, mode_); }
  void exit() { scope_.reset(); }

 private:
  std::shared_ptr<RecomputationTape> tape_;
  Mode mode_;
  std::optional<RecomputationScope> scope_;
};

}  // namespace

void bind_autocast(py::module_& module) {
  py::class_<AutocastRegion>(module, "AutocastRegion")
      .def("exit", &AutocastRegion::exit, "Leaves the region; must be the innermost one.")
      .def("abandon", &AutocastRegion::abandon,
           "Leaves the region and reduces and updates nothing; must be the innermost one.");
  module.def("enter_autocast", &enter_autocast, py::arg("enabled"), py::arg("calibrating"),
             py::arg("recipe"), py::arg("group"), py::arg("updates_scales"));
  module.def(
      "is_fp8_enabled",
      [] {
        const AutocastState* state = current_autocast();
        return state != nullptr && state->options.enabled;
      },
      "Whether this thread is inside an enabled fp8_autocast.");
  module.def(
      "is_fp8_calibrating",
      [] {
        const AutocastState* state = current_autocast();
        return state != nullptr && state->options.calibrating;
      },
      "Whether this thread is inside a calibrating fp8_autocast.");

  py::class_<Region, std::shared_ptr<Region>>(
      module, "Region", "State that the layers inside one outermost autocast share.")
      .def("update_backward", [](Region& self) {
        const WithoutGil no_gil;
        const c10::AutoGradMode no_grad(false);
        self.update(/*backward=*/true);
      });
  module.def("claim_region", &claim_region,
             "The region whose gradients' scales the caller updates when its backward ends; None "
             "where an earlier one does, and outside of any region.");
  py::class_<GraphedLayers>(module, "GraphedLayers",
                            "Layers that a graph holds: their histories and scales.")
      .def(py::init([](const std::shared_ptr<ModuleAdapter>& module, const GraphedLayers* earlier) {
             return GraphedLayers(module->module().quantizations(), module, earlier);
           }),
           py::arg("module"), py::arg("earlier").none(true))
      .def("__len__", &GraphedLayers::size)
      .def("join_region", &GraphedLayers::join_region,
           "Has the end of this thread's region update them, as if they had run in it.");

  py::class_<RecomputationTape, std::shared_ptr<RecomputationTape>>(
      module, "RecomputationTape",
      "The decisions of the layers inside one checkpointed function, kept for its recomputation.")
      .def(py::init())
      .def_property("has_backward", &RecomputationTape::has_backward,
                    &RecomputationTape::set_has_backward,
                    "False if no input of a reentrant checkpoint requires a gradient.");
  py::enum_<Mode>(module, "RecomputationMode")
      .value("record", Mode::record)
      .value("replay", Mode::replay);
  py::class_<TapeScope>(module, "RecomputationScope",
                        "Context manager: layers write their passes to the tape, or follow it.")
      .def(py::init<std::shared_ptr<RecomputationTape>, Mode>())
      .def("__enter__", &TapeScope::enter)
      .def("__exit__", [](TapeScope& scope, const py::args&) { scope.exit(); });
}

}  // namespace telens::python
