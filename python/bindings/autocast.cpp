#include "python/bindings/module.h"

#include <memory>
#include <optional>

#include "core/modules/shared/recomputation.h"
#include "core/quantization/autocast.h"
#include "python/bindings/gil.h"
#include "python/bindings/module_adapter.h"
#include "python/bindings/process_group.h"

namespace telens::python {

namespace py = pybind11;

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
