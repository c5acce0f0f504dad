// For tests of sessions: a temporary folder, a feature whose calls are scripted, and a layer that
// calls its hooks as Linear does.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/hook_points.h"
#include "hooks/debug.h"
#include "hooks/feature.h"
#include "hooks/feature_registry.h"
#include "record/run_reader.h"
#include "tests/temporary_folder.h"

namespace telens::testing {

// A logger that keeps what it gets as "iteration:name=value".
class Recorder final : public debug::ScalarLogger {
 public:
  void log_scalar(std::string_view name, double value, std::int64_t iteration) override {
    lines.push_back(fmt::format("{}:{}={}", iteration, name, value));
  }
  std::vector<std::string> lines;
};

inline std::string to_text(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Sets an environment variable during its lifetime.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~EnvironmentVariable() { unsetenv(name_); }
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

 private:
  const char* name_;
};

// The calls of one scripted feature. A call without a function returns the default of the
// interface.
struct Script {
  RoutingCalls calls = {};
  std::function<RoutingAnswer(std::int64_t, Gemm)> fp8_gemm;
  std::function<RoutingAnswer(std::int64_t, Gemm, TensorName)> modify_enabled;
  std::function<RoutingAnswer(std::int64_t, TensorName)> inspect_enabled;
  std::function<RoutingAnswer(std::int64_t, Gemm, TensorName)> postquantize_enabled;
  std::function<Operand(const FeatureCall&, const ModifyTensorCall&)> modify;
  std::function<void(const FeatureCall&, const InspectTensorCall&)> inspect;
  std::function<void(const FeatureCall&, const InspectPostquantizeCall&)> postquantize;
};

class ScriptedFeature final : public Feature {
 public:
  explicit ScriptedFeature(const Script& script) : script_(script) {}

  RoutingCalls routing_calls() const override { return script_.calls; }
  RoutingAnswer fp8_gemm_enabled(const FeatureCall& at, Gemm gemm) override {
    return script_.fp8_gemm ? script_.fp8_gemm(at.iteration, gemm) : RoutingAnswer::always();
  }
  RoutingAnswer modify_tensor_enabled(const FeatureCall& at, Gemm gemm,
                                      TensorName tensor) override {
    return script_.modify_enabled ? script_.modify_enabled(at.iteration, gemm, tensor)
                                  : RoutingAnswer::never();
  }
  RoutingAnswer inspect_tensor_enabled(const FeatureCall& at, TensorName tensor) override {
    return script_.inspect_enabled ? script_.inspect_enabled(at.iteration, tensor)
                                   : RoutingAnswer::never();
  }
  RoutingAnswer inspect_tensor_postquantize_enabled(const FeatureCall& at, Gemm gemm,
                                                    TensorName tensor) override {
    return script_.postquantize_enabled ? script_.postquantize_enabled(at.iteration, gemm, tensor)
                                        : RoutingAnswer::never();
  }
  Operand modify_tensor(const FeatureCall& at, const ModifyTensorCall& call) override {
    return script_.modify ? script_.modify(at, call) : Feature::modify_tensor(at, call);
  }
  void inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
                      TensorReading&) override {
    if (script_.inspect) script_.inspect(at, call);
  }
  void inspect_tensor_postquantize(const FeatureCall& at,
                                   const InspectPostquantizeCall& call) override {
    if (script_.postquantize) script_.postquantize(at, call);
  }

 private:
  const Script& script_;
};

// Registers scripted features in the namespace transformer_engine during its lifetime.
class ScriptedFeatures {
 public:
  // The script must exist as long as sessions use it.
  void add(const std::string& name, const Script& script) {
    add(name, [&script](FeatureServices&) { return std::make_unique<ScriptedFeature>(script); });
  }
  // Registers a class of the test's own.
  void add(const std::string& name,
           const std::function<std::unique_ptr<Feature>(FeatureServices&)>& make) {
    config::FeatureDescription description;
    description.feature_namespace = config::kTransformerEngineNamespace;
    description.name = name;
    description.owner = kOwner;
    register_feature(
        {std::move(description), [make](const config::FeatureEntry&, FeatureServices& services) {
           return make(services);
         }});
  }
  ~ScriptedFeatures() { unregister_features(kOwner); }

 private:
  static constexpr const char* kOwner = "a test";
};

// Returns a section with the given lines for all layers.
inline std::string section(const std::string& features, const std::string& name = "section") {
  std::istringstream lines(features);
  std::string text = name +
                     ":\n  enabled: True\n  layers: {layer_types: [all]}\n"
                     "  transformer_engine:\n";
  for (std::string line; std::getline(lines, line);) text += "    " + line + '\n';
  return text;
}

// The hook calls of one layer in their order, without any arithmetic.
class FakeLayer {
 public:
  explicit FakeLayer(std::string name = "layer") : hooks(std::move(name)) {}

  // Returns whether the unfused path was taken.
  bool run(const at::Tensor& x = at::ones({2, 4}), bool under_recipe = false) {
    const auto plan = hooks.begin_forward({under_recipe});
    if (!plan) return false;
    input(*plan, TensorName::activation, x);
    input(*plan, TensorName::weight, x);
    output(*plan, TensorName::output, x);
    input(*plan, TensorName::gradient, x);
    output(*plan, TensorName::dgrad, x);
    output(*plan, TensorName::wgrad, x);
    return true;
  }

  void input(const RoutingPlan& plan, TensorName name, const at::Tensor& x,
             Quantizer* quantizer = nullptr, bool first_microbatch = true) {
    const hook_points::ListenerCall listener(plan);
    if (!listener) return;
    Operand operand = x;
    if (quantizer != nullptr) operand = quantizer->quantize(x);
    const auto [first, second] = get_gemms(name);
    for (const Gemm gemm : {second, first}) {
      if (!plan.modifies(gemm, name)) continue;
      operand = listener->modify_tensor(hooks, plan, {gemm, name, x, nullptr, x.scalar_type()});
    }
    if (plan.inspects(name)) {
      listener->inspect_tensor(
          hooks, plan,
          {name, &x, &operand, &operand, quantizer, tensor_parallel, first_microbatch});
    }
    for (const Gemm gemm : {first, second}) {
      if (!plan.inspects_quantized(gemm, name)) continue;
      listener->inspect_tensor_postquantize(hooks, plan, {gemm, name, operand, gemm == first, {}});
    }
  }

  void output(const RoutingPlan& plan, TensorName name, const at::Tensor& x) {
    const hook_points::ListenerCall listener(plan);
    if (listener && plan.inspects(name)) {
      listener->inspect_tensor(hooks, plan, {name, &x, nullptr, nullptr, nullptr, {}});
    }
  }

  LayerHooks hooks;
  TensorParallel tensor_parallel;
};

struct StoredValue {
  std::int64_t iteration;
  std::string layer, tensor, statistic;
  double value;
};

// Returns all records of the run in a log_dir.
inline std::vector<StoredValue> stored_values(const std::string& log_dir) {
  const record::RunReader run(log_dir);
  const auto name = [&](record::Dictionary dictionary, std::int32_t id) {
    return id == record::kNoName ? std::string() : run.names(dictionary)[id];
  };
  std::vector<StoredValue> values;
  run.read({}, [&](int, std::span<const record::Record> records) {
    for (const record::Record& each : records) {
      values.push_back({each.iteration, name(record::Dictionary::layer, each.layer),
                        name(record::Dictionary::tensor, each.tensor),
                        name(record::Dictionary::statistic, each.statistic), each.value});
    }
  });
  return values;
}

// Returns the values of a statistic in their order, as "iteration:layer=value".
inline std::vector<std::string> get_values(const std::string& statistic,
                                           const std::string& log_dir) {
  std::vector<std::string> values;
  for (const StoredValue& each : stored_values(log_dir)) {
    if (each.statistic != statistic) continue;
    values.push_back(fmt::format("{}:{}={}", each.iteration, each.layer, each.value));
  }
  return values;
}

inline constexpr const char* kMaxOfActivation =
    "LogTensorStats: {enabled: True, tensors: [activation], stats: [max]}\n";

// Gives every test its own folder, and ends the session that a test left open.
class SessionTest : public ::testing::Test {
 protected:
  ~SessionTest() override { debug::end_debug(); }

  debug::InitializeOptions options(std::string config = {}) const {
    debug::InitializeOptions options;
    if (!config.empty()) options.config_text = std::move(config);
    options.log_dir = folder.str();
    return options;
  }
  std::string messages() const {
    return to_text(folder.path() / "nvdlfw_inspect_logs/nvdlfw_inspect_globalrank-0.log");
  }
  std::string statistics_log() const {
    return to_text(folder.path() /
                   "nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-0.log");
  }

  TemporaryFolder folder;
  ScriptedFeatures features;
};

}  // namespace telens::testing
