#include <ATen/ops/scalar_tensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/hook_points.h"
#include "hooks/config/config.h"
#include "hooks/debug.h"
#include "hooks/libtorch/c10d_group.h"
#include "hooks/rank_checker.h"
#include "python/bindings/config_value.h"
#include "python/bindings/distributed.h"
#include "python/bindings/errors.h"
#include "python/bindings/gil.h"
#include "python/bindings/module.h"

namespace telens::python {

namespace py = pybind11;

namespace {

// A Python object with a method (name, value, iteration): a logger's log_scalar, a TensorBoard
// writer's add_scalar.
class PythonScalarLogger final : public debug::ScalarLogger {
 public:
  PythonScalarLogger(py::object logger, const char* method)
      : method_(share(logger.attr(method))), logger_(share(std::move(logger))) {}

  void log_scalar(std::string_view name, double value, std::int64_t iteration) override {
    const WithGil gil;
    letting_interruptions_pass([&] { (*method_)(std::string(name), value, iteration); });
  }

 private:
  GilObject method_;
  GilObject logger_;
};

std::shared_ptr<debug::ScalarLogger> scalar_logger(const py::object& logger, const char* method) {
  return logger.is_none() ? nullptr : std::make_shared<PythonScalarLogger>(logger, method);
}

void check_interrupt() {
  const WithGil held;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

debug::InitializeOptions take_options(std::string config_file,
                                      std::optional<std::string> config_text,
                                      std::vector<std::string> feature_dirs,
                                      const py::object& statistics_logger,
                                      const py::object& tb_writer, std::string log_dir,
                                      std::int64_t init_training_step, bool default_logging_enabled,
                                      bool block_when_full, std::uint64_t max_size, int rank,
                                      int world_size, const py::object& world) {
  debug::InitializeOptions options;
  options.config_file = std::move(config_file);
  options.config_text = std::move(config_text);
  options.feature_dirs = std::move(feature_dirs);
  options.statistics_logger = scalar_logger(statistics_logger, "log_scalar");
  options.tb_writer = scalar_logger(tb_writer, "add_scalar");
  options.log_dir = std::move(log_dir);
  options.init_training_step = init_training_step;
  options.default_logging_enabled = default_logging_enabled;
  options.recording = {.block_when_full = block_when_full, .max_size = max_size};
  options.rank = rank;
  options.world_size = world_size;
  options.world = to_process_group(world);
  options.check_interrupt = check_interrupt;
  return options;
}

std::uint64_t tick() {
  static_cast<void>(debug::iteration());  // throws without a session
  return hook_points::current_tick.load(std::memory_order_relaxed);
}

void log_message(const std::string& message, const std::string& layer_name, int level,
                 const std::string& once_per) {
  debug::log_message(message, layer_name, static_cast<debug::LogLevel>(level), once_per);
}

// tensors: (kind, module, layer, tensor name, value, part) each.
using ShownTensor =
    std::tuple<std::string, std::string, std::string, std::string, at::Tensor, std::string>;

void show_model(std::vector<ShownTensor> tensors) {
  using Kind = ModelTensor::Kind;
  std::vector<ModelTensor> shown;
  for (auto& [kind, module, layer, tensor, value, part] : tensors) {
    shown.push_back({kind == "weight"     ? Kind::weight
                     : kind == "gradient" ? Kind::gradient
                                          : Kind::amax_history,
                     std::move(module), std::move(layer), std::move(tensor), std::move(value),
                     std::move(part)});
  }
  const WithoutGil no_gil;
  debug::show_model(shown);
}

CollectiveKind kind_of_collective(const std::string& op) {
  if (op == "sum") return CollectiveKind::sum;
  if (op == "max") return CollectiveKind::maximum;
  if (op == "all_to_all") return CollectiveKind::exchange;
  return op == "gather" ? CollectiveKind::gather : CollectiveKind::sum_and_scatter;
}

void check_collective(std::string name, const std::string& op, at::Tensor sent, at::Tensor result,
                      const py::object& group) {
  ProgramCollective collective{.name = std::move(name),
                               .kind = kind_of_collective(op),
                               .sent = std::move(sent),
                               .result = std::move(result),
                               .group = to_process_group(group)};
  const WithoutGil no_gil;
  debug::check_collective(std::move(collective));
}

py::dict log_tensor_stats(const std::string& layer_name, const std::string& tensor_name,
                          const at::Tensor& tensor, std::optional<std::int64_t> iteration,
                          bool skip_reduction, const py::object& reduction_group) {
  const debug::LogTensorStatsOptions options{
      .iteration = iteration,
      .skip_reduction = skip_reduction,
      .reduction_group = to_process_group(reduction_group, "reduction_group")};
  std::vector<std::pair<std::string, double>> logged;
  {
    const WithoutGil no_gil;
    logged = debug::log_tensor_stats(layer_name, tensor_name, tensor, options);
  }
  py::dict values;
  for (const auto& [name, value] : logged) {
    values[py::str(name)] = at::scalar_tensor(value, at::kFloat);
  }
  return values;
}

std::vector<std::tuple<std::string, std::string, py::object>> features_of_layer(
    const std::string& layer_name) {
  std::vector<std::tuple<std::string, std::string, py::object>> features;
  for (const config::FeatureEntry* entry : debug::entries_for(layer_name)) {
    features.emplace_back(entry->description->feature_namespace, entry->description->name,
                          to_python(entry->config));
  }
  return features;
}

std::vector<std::string> findings() {
  std::vector<std::string> texts;
  for (debug::Finding& each : debug::findings()) texts.push_back(std::move(each.json));
  return texts;
}

void on_finding(py::object function) {
  const GilObject shared = share(std::move(function));
  const WithoutGil no_gil;
  debug::on_finding([shared](const debug::Finding& finding) {
    const WithGil gil;
    letting_interruptions_pass([&] { (*shared)(finding.json); });
  });
}

bool checkpoint_allowed(double seconds) {
  return debug::checkpoint_allowed(
      std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds)));
}

// The GIL is released wherever features, loggers or other ranks may be waited for.
using NoGil = py::call_guard<WithoutGil>;

void bind_sessions(py::module_& module) {
  const NoGil no_gil;
  py::class_<debug::InitializeOptions>(module, "InitializeOptions")
      .def(py::init(&take_options), py::kw_only(), py::arg("config_file"), py::arg("config_text"),
           py::arg("feature_dirs"), py::arg("statistics_logger"), py::arg("tb_writer"),
           py::arg("log_dir"), py::arg("init_training_step"), py::arg("default_logging_enabled"),
           py::arg("block_when_full"), py::arg("max_size"), py::arg("rank"), py::arg("world_size"),
           py::arg("world"));
  module.def(
      "initialize", [](const debug::InitializeOptions& options) { debug::initialize(options); },
      py::arg("options"), no_gil);
  module.def(
      "refuse_to_initialize",
      [](const py::object& world) {
        const debug::ReductionGroup group = to_process_group(world);
        const WithoutGil released;
        debug::refuse_to_initialize(group);
      },
      py::arg("world"), "Notifies the ranks waiting in initialize that this rank will not join.");
  module.def("is_initialized", &debug::is_initialized);
  module.def("step", &debug::step, py::arg("loss"), no_gil);
  module.def(
      "end_debug", [](const std::string& exception) { debug::end_debug(exception); },
      py::arg("exception"), no_gil);
  module.def("initialize_training_step", &debug::initialize_training_step, py::arg("iteration"),
             no_gil);
  module.def("iteration", &debug::iteration);
  module.def("tick", &tick,
             "A number for the running session and iteration; increases with "
             "either.");
}

void bind_records(py::module_& module) {
  const NoGil no_gil;
  module.def("findings", &findings, no_gil);
  module.def("on_finding", &on_finding, py::arg("function"));
  module.def("checkpoint_allowed", &checkpoint_allowed, py::arg("seconds"), no_gil);
  module.def(
      "record", [](const std::string& name, double value) { debug::record(name, value); },
      py::arg("name"), py::arg("value"), no_gil);
  module.def("log_message", &log_message, py::arg("message"), py::arg("layer_name"),
             py::arg("level"), py::arg("once_per"), no_gil);
  module.def("log_tensor_stats", &log_tensor_stats, py::arg("layer_name"), py::arg("tensor_name"),
             py::arg("tensor"), py::arg("iteration"), py::arg("skip_reduction"),
             py::arg("reduction_group"));
  module.def(
      "add_logger",
      [](const py::object& logger) {
        const std::shared_ptr<debug::ScalarLogger> added = scalar_logger(logger, "log_scalar");
        const WithoutGil released;
        debug::add_logger(added);
      },
      py::arg("logger"), "Adds a logger, an object with log_scalar.");
  module.def("set_terminal_prefix", &debug::set_terminal_prefix, py::arg("prefix"),
             "Begins each message on stderr.");
  module.def("run_path", &debug::run_path,
             "Returns the directory that the session records to; '' if it records nothing.");
}

void bind_layers(py::module_& module) {
  const NoGil no_gil;
  module.def("note_foreign_layer", &debug::note_foreign_layer, py::arg("layer_name"),
             py::arg("kind"), no_gil);
  module.def("any_layer_ran", &debug::any_layer_ran,
             "Returns true if a layer ran, a script logged a tensor, or the configuration has no "
             "sections.");
  module.def("features_of_layer", &features_of_layer, py::arg("layer_name"),
             "The running features of a layer: (namespace, name, configuration) each.");
  module.def("list_features", &debug::list_features);
  module.def("explain_features", &debug::explain_features, py::arg("names"));
}

void bind_ranks(py::module_& module) {
  module.def(
      "longest_wait_for_ranks",
      []() -> std::optional<std::int64_t> {
        const auto limit = debug::longest_wait_for_ranks();
        return limit ? std::optional<std::int64_t>(limit->count()) : std::nullopt;
      },
      "Seconds; None if no ranks are compared.");
  module.def(
      "compare_ranks_over",
      [](const py::object& group) { debug::compare_ranks_over(to_process_group(group)); },
      py::arg("group"));
  module.def(
      "all_ranks_say",
      [](bool yes, const py::object& world) {
        const debug::ReductionGroup group = to_process_group(world);
        const WithoutGil released;
        return debug::all_ranks_say(yes, group);
      },
      py::arg("yes"), py::arg("world"), "Whether every rank calls this with True.");
  module.def("compares_ranks", &debug::compares_ranks);
  module.def("wants_model", &debug::wants_model,
             "Returns true if show_model() must be called now.");
  module.def("show_model", &show_model, py::arg("tensors"));
  module.def("check_collective", &check_collective, py::arg("name"), py::arg("kind"),
             py::arg("sent"), py::arg("result"), py::arg("group"));
  module.def(
      "set_tensor_reduction_group",
      [](const py::object& group, const std::string& layer_name) {
        debug::set_tensor_reduction_group(to_process_group(group), layer_name);
      },
      py::arg("group"), py::arg("layer_name"));
  module.def("get_tensor_reduction_group", [] {
    return from_process_group(find_process_group(debug::get_tensor_reduction_group()));
  });
  module.def("set_weight_tensor_tp_group_reduce", &debug::set_weight_tensor_tp_group_reduce,
             py::arg("enabled"));
}

}  // namespace

void bind_debug(py::module_& parent) {
  py::module_ module = parent.def_submodule("debug", "Sessions; see telens.debug.");
  bind_sessions(module);
  bind_records(module);
  bind_layers(module);
  bind_ranks(module);
}

}  // namespace telens::python
