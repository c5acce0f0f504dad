// Features and statistics written in Python.
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "hooks/config/selection.h"
#include "hooks/debug.h"
#include "hooks/feature.h"
#include "hooks/feature_registry.h"
#include "hooks/statistics_engine.h"
#include "python/bindings/config_value.h"
#include "python/bindings/distributed.h"
#include "python/bindings/errors.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"
#include "python/bindings/quantized_tensor.h"
#include "python/bindings/quantizers.h"

namespace telens::python {

namespace py = pybind11;

// ---- statistics that Python classes define, or request from the engine

namespace {

std::vector<double> get_values(const py::object& sums) {
  const auto tensor = sums.cast<at::Tensor>().contiguous();
  const auto* data = tensor.const_data_ptr<double>();
  return {data, data + tensor.numel()};
}

// Converts sums to an FP64 tensor.
at::Tensor get_tensor(std::span<const double> sums) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(sums.size())}, at::kDouble);
  std::ranges::copy(sums, tensor.mutable_data_ptr<double>());
  return tensor;
}

// Adapts a Python class to the C++ interface. It calls a
// telens.debug.feature_caller.StatisticCaller, which converts the results to tensors. The engine
// calls it from autograd's threads and from step(), without the GIL and without a lock that a
// thread with the GIL might wait for.
class PythonStatistic final : public StatisticDefinition {
 public:
  PythonStatistic(py::object caller, bool merges)
      : caller_(share(std::move(caller))), merges_(merges) {}

  at::Tensor add(const at::Tensor& tensor) const override {
    const WithGil gil;
    return letting_interruptions_pass(
        [&] { return caller_->attr("add")(tensor).cast<at::Tensor>(); });
  }

  void merge(std::span<double> into, std::span<const double> from) const override {
    if (!merges_) {
      StatisticDefinition::merge(into, from);
      return;
    }
    const WithGil gil;
    const std::vector<double> merged = letting_interruptions_pass(
        [&] { return get_values(caller_->attr("merge")(get_tensor(into), get_tensor(from))); });
    std::ranges::copy(merged, into.begin());  // the caller has counted them
  }

  double finish(std::span<const double> sums) const override {
    const WithGil gil;
    return letting_interruptions_pass(
        [&] { return caller_->attr("finish")(get_tensor(sums)).cast<double>(); });
  }

 private:
  GilObject caller_;
  const bool merges_;
};

}  // namespace

// A TensorReading as a feature class sees it. GIL held.
class PythonReading {
 public:
  // Parses a call's names once. Lives as long as the feature.
  class Requests;

  PythonReading(TensorReading& reading, Requests& requests);
  ~PythonReading();
  PythonReading(const PythonReading&) = delete;
  PythonReading& operator=(const PythonReading&) = delete;

  // telens._C.StatisticsOfTensor; raises an error if it is used after this object's end.
  const pybind11::object& object() const { return object_; }

  static std::shared_ptr<Requests> make_requests(StatisticsEngine& engine);

 private:
  struct Handle;
  friend void bind_statistics(pybind11::module_& module);

  std::shared_ptr<Handle> handle_;
  pybind11::object object_;
};

class PythonReading::Requests {
 public:
  explicit Requests(StatisticsEngine& engine) : engine_(engine) {}

  const StatisticsRequest& of(const std::vector<std::string>& names) {
    StatisticsRequestPtr& known = known_[names];
    if (!known) known = engine_.prepare(names);
    return *known;
  }

 private:
  StatisticsEngine& engine_;
  std::map<std::vector<std::string>, StatisticsRequestPtr> known_;
};

struct PythonReading::Handle {
  TensorReading* reading;  // nullptr after the call
  Requests* requests;

  std::optional<std::string> want(const py::args& names) const {
    if (reading == nullptr) {
      raise<UsageError>(
          "statistics.want: the call of inspect_tensor is over; ask for statistics before it "
          "returns");
    }
    if (names.empty()) raise<UsageError>("statistics.want: name at least one statistic");
    return reading->want(requests->of(names.cast<std::vector<std::string>>()));
  }
};

PythonReading::PythonReading(TensorReading& reading, Requests& requests)
    : handle_(std::make_shared<Handle>(Handle{&reading, &requests})), object_(py::cast(handle_)) {}

PythonReading::~PythonReading() { handle_->reading = nullptr; }

std::shared_ptr<PythonReading::Requests> PythonReading::make_requests(StatisticsEngine& engine) {
  return std::make_shared<Requests>(engine);
}

void bind_statistics(py::module_& module) {
  using Handle = PythonReading::Handle;
  py::class_<Handle, std::shared_ptr<Handle>>(
      module, "StatisticsOfTensor",
      "The interface of the statistics engine for a feature class inside inspect_tensor.")
      .def("want", &Handle::want,
           "want(*names: str) -> str | None\n\n"
           "Has these statistics of the tensor recorded at the step, as LogTensorStats and "
           "LogFp8TensorStats record them: from the one read that all features share, over all "
           "micro-batches and ranks. Returns which of them have no meaning for this tensor and "
           "why; None if all are read. Raises telens.UsageError with the nearest name for an "
           "unknown statistic.");
  module.def(
      "register_statistic",
      [](std::string name, std::string doc, std::size_t words, std::string owner, py::object caller,
         bool merges) {
        register_statistic({{std::move(name), std::move(doc), words, std::move(owner)},
                            std::make_shared<PythonStatistic>(std::move(caller), merges)});
      },
      py::arg("name"), py::arg("doc"), py::arg("words"), py::arg("owner"), py::arg("caller"),
      py::arg("merges"));
  module.def("unregister_statistics", &unregister_statistics, py::arg("owner"));
}

// ---- feature classes

namespace {

std::string text(std::string_view name) { return std::string(name); }

// Adapts a Python feature class to the C++ interface. It calls a
// telens.debug.feature_caller.FeatureCaller, which matches the configuration and passes the
// arguments that the class declares.
class PythonFeature final : public Feature {
 public:
  // `caller` is a FeatureCaller; `calls` has the names of the routing calls that its class
  // implements.
  PythonFeature(py::object caller, std::set<std::string> calls, StatisticsEngine& statistics)
      : asks_for_statistics_(caller.attr("asks_for_statistics").cast<bool>()),
        may_watch_wgrad_(caller.attr("may_watch_wgrad").cast<bool>()),
        requests_(PythonReading::make_requests(statistics)),
        caller_(share(std::move(caller))),
        calls_(std::move(calls)) {}

  RoutingCalls routing_calls() const override {
    return {.fp8_gemm = calls_.contains("fp8_gemm_enabled"),
            .modify = calls_.contains("modify_tensor_enabled"),
            .inspect = calls_.contains("inspect_tensor_enabled"),
            .inspect_postquantize = calls_.contains("inspect_tensor_postquantize_enabled")};
  }

  // Only the class decides in which iterations and for which tensors.
  bool reads_statistics(TensorName, std::int64_t) const override { return asks_for_statistics_; }

  // Read from the configuration when the feature was made.
  bool may_watch_wgrad() const override { return may_watch_wgrad_; }

  RoutingAnswer fp8_gemm_enabled(const FeatureCall& at, Gemm gemm) override {
    return route("fp8_gemm_enabled", at, gemm, std::nullopt);
  }
  RoutingAnswer modify_tensor_enabled(const FeatureCall& at, Gemm gemm,
                                      TensorName tensor) override {
    return route("modify_tensor_enabled", at, gemm, tensor);
  }
  RoutingAnswer inspect_tensor_enabled(const FeatureCall& at, TensorName tensor) override {
    return route("inspect_tensor_enabled", at, std::nullopt, tensor);
  }
  RoutingAnswer inspect_tensor_postquantize_enabled(const FeatureCall& at, Gemm gemm,
                                                    TensorName tensor) override {
    return route("inspect_tensor_postquantize_enabled", at, gemm, tensor);
  }

  Operand modify_tensor(const FeatureCall& at, const ModifyTensorCall& call) override {
    const WithGil gil;
    const bool is_input = is_gemm_input(call.tensor_name);
    const py::object out = call.out == nullptr ? py::object(py::none()) : from_operand(*call.out);
    const py::object dtype =
        is_input && call.out == nullptr ? py::cast(call.dtype) : py::object(py::none());
    const py::object result = letting_interruptions_pass([&] {
      return caller_->attr("modify_tensor")(
          text(at.layer_name), text(get_name(call.gemm)), text(get_name(call.tensor_name)),
          call.tensor, from_quantizer(call.default_quantizer), at.iteration, dtype, out);
    });
    if (call.out == nullptr) {
      return to_operand(result);
    }
    if (is_wrapped_quantized(out.ptr())) {
      *call.out = unwrap_quantized(out.ptr());
    }
    // A class that does not support `out` returns a tensor.
    return result.is_none() || result.is(out) ? *call.out : call.deliver(to_operand(result));
  }

  void inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
                      TensorReading& reading) override {
    const WithGil gil;
    const PythonReading statistics(reading, *requests_);
    const auto operand = [](const Operand* given) {
      return given == nullptr ? py::object(py::none()) : from_operand(*given);
    };
    const py::object tensor =
        call.tensor == nullptr ? py::object(py::none()) : py::cast(*call.tensor);
    letting_interruptions_pass([&] {
      caller_->attr("inspect_tensor")(text(at.layer_name), text(get_name(call.tensor_name)), tensor,
                                      at.iteration, from_process_group(call.tensor_parallel.group),
                                      call.tensor_parallel.size, operand(call.rowwise),
                                      operand(call.columnwise), from_quantizer(call.quantizer),
                                      statistics.object());
    });
  }

  void inspect_tensor_postquantize(const FeatureCall& at,
                                   const InspectPostquantizeCall& call) override {
    const WithGil gil;
    letting_interruptions_pass([&] {
      caller_->attr("inspect_tensor_postquantize")(
          text(at.layer_name), text(get_name(call.gemm)), text(get_name(call.tensor_name)),
          from_operand(call.tensor), at.iteration, from_process_group(call.tensor_parallel.group),
          call.tensor_parallel.size, call.rowwise);
    });
  }

 private:
  RoutingAnswer route(const char* call, const FeatureCall& at, std::optional<Gemm> gemm,
                      std::optional<TensorName> tensor) {
    const WithGil gil;
    const py::object answer = letting_interruptions_pass([&] {
      return caller_->attr("route")(
          call, text(at.layer_name), gemm ? py::cast(text(get_name(*gemm))) : py::none(),
          tensor ? py::cast(text(get_name(*tensor))) : py::none(), at.iteration);
    });
    const auto [enabled, next] = answer.cast<std::pair<bool, std::optional<std::int64_t>>>();
    return {enabled, next};
  }

  const bool asks_for_statistics_;
  const bool may_watch_wgrad_;
  const std::shared_ptr<PythonReading::Requests> requests_;  // used with the GIL
  GilObject caller_;
  const std::set<std::string> calls_;
};

// Returns the position of the part of a feature's configuration that Python addresses as
// ["gemms_struct", 0, "gemm"], or of its parent if the part is missing.
config::Location find_location(const config::FeatureEntry& entry, const py::handle& place) {
  config::Location location = entry.location;
  const config::Value* value = &entry.config;
  for (const py::handle step : place) {
    if (py::isinstance<py::int_>(step)) {
      const auto index = step.cast<std::size_t>();
      if (!value->is_list() || index >= value->as_list().size()) break;
      value = &value->as_list()[index];
      location = value->location();
      continue;
    }
    if (!value->is_map()) break;
    const auto& map = value->as_map();
    const auto found = std::ranges::find(map, step.cast<std::string>(), &config::MapEntry::key);
    if (found == map.end()) break;
    location = found->key_location;
    value = &found->value;
  }
  return location;
}

// make_caller(config: dict) -> (FeatureCaller, names of its calls)
FeatureFactory make_factory(py::object make_caller) {
  return [make_caller = share(std::move(make_caller))](
             const config::FeatureEntry& entry,
             FeatureServices& services) -> std::unique_ptr<Observer> {
    const WithGil gil;
    py::tuple made;
    try {
      made = (*make_caller)(to_python(entry.config));
    } catch (py::error_already_set& error) {
      // Configuration errors carry their position (telens.debug.parameters). An exception raised by
      // the class itself may also have an attribute of that name.
      if (!error.matches(config_error()) || !py::hasattr(error.value(), "place")) throw;
      raise<ConfigError>("{}: section '{}', {}",
                         to_string(find_location(entry, error.value().attr("place"))),
                         entry.section, py::str(error.value()).cast<std::string>());
    }
    return std::make_unique<PythonFeature>(
        py::object(made[0]), made[1].cast<std::set<std::string>>(), services.statistics());
  };
}

}  // namespace

void bind_features(py::module_& module) {
  module.def(
      "register_feature",
      [](std::string feature_namespace, std::string name, std::string summary, std::string doc,
         std::string owner, py::object make_caller) {
        config::FeatureDescription description;
        description.feature_namespace = std::move(feature_namespace);
        description.name = std::move(name);
        description.summary = std::move(summary);
        description.doc = std::move(doc);
        description.owner = std::move(owner);
        description.opaque = true;
        register_feature({std::move(description), make_factory(std::move(make_caller))});
      },
      py::arg("feature_namespace"), py::arg("name"), py::arg("summary"), py::arg("doc"),
      py::arg("owner"), py::arg("make_caller"));
  module.def("log_scalar", &debug::log_scalar, py::arg("name"), py::arg("value"),
             py::arg("iteration"), py::call_guard<WithoutGil>());
  module.def("register_namespace", &register_namespace, py::arg("name"), py::arg("owner"));
  module.def("unregister_features", &unregister_features, py::arg("owner"));
  module.def(
      "matched_config",
      [](const py::dict& feature_config, const std::optional<std::string>& gemm,
         const std::optional<std::string>& tensor) -> py::object {
        std::optional<Gemm> which;
        if (gemm) {
          which = gemm_from_name(*gemm);
          if (!which) {
            raise<UsageError>("'{}' is not a GEMM; expected fprop, dgrad or wgrad", *gemm);
          }
        }
        const auto matched = config::matched_config(
            to_config_value(feature_config), which,
            tensor ? std::optional<std::string_view>(*tensor) : std::nullopt);
        return matched ? to_python(*matched) : py::object(py::none());
      },
      py::arg("config"), py::arg("gemm"), py::arg("tensor"),
      "Returns the part of a feature's configuration for a GEMM and a tensor; None if they are not "
      "selected.");
}

}  // namespace telens::python
