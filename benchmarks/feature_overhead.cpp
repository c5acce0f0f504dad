// The GPT sample's training step with one feature on for all layers in every iteration, against the
// same step without a session; feature by feature. And the same with a whole file of configs/.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "benchmarks/arguments.h"
#include "benchmarks/sample_training.h"
#include "benchmarks/sessions.h"
#include "benchmarks/side_by_side.h"

namespace {

using telens::benchmark::Contender;
using telens::benchmark::SampleTraining;

constexpr int kSteps = 2;  // per round
// Per round with a budget, which holds over a run. Measured are the steps after those that are
// recorded in full, of which there are kFullSteps here.
constexpr int kStepsWithBudget = 64;
constexpr int kFullSteps = 8;

// A single round only shows that all of it runs.
int steps_with_budget(int rounds) { return rounds == 1 ? kSteps : kStepsWithBudget; }

struct FeatureSection {
  std::string name;     // the feature's, as in rows/features.py
  std::string options;  // behind `enabled: True`
  std::string feature_namespace = "transformer_engine";
  std::string budget = {};
};

constexpr const char* kInputs = "tensors: [activation, weight, gradient]";
constexpr const char* kAllGemms = "gemms: [fprop, dgrad, wgrad]";
constexpr const char* kAllTensors = "tensors: [activation, weight, gradient, output, wgrad, dgrad]";

// A section's line that ends the full recording before the measured steps.
std::string budget_line(const std::string& share) {
  return fmt::format("  budget: {{share: {}, full_steps: {}}}\n", share, kFullSteps);
}

std::string get_config(const FeatureSection& section) {
  // A name with a space says more than the feature's own.
  const std::string feature = section.name.substr(0, section.name.find(' '));
  return fmt::format(
      "section:\n  enabled: True\n{}  layers: {{layer_types: all}}\n  {}:\n    {}: {{enabled: "
      "True{}{}}}\n",
      section.budget.empty() ? "" : budget_line(section.budget), section.feature_namespace, feature,
      section.options.empty() ? "" : ", ", section.options);
}

std::vector<FeatureSection> with_delayed_scaling() {
  const std::string base =
      "stats: [min, max, mean, std, l1_norm, l2_norm, cur_amax, dynamic_range]";
  const std::string inputs = kInputs;
  const std::string operands = fmt::format("{}, {}", kAllGemms, inputs);
  return {
      {"LogTensorStats", fmt::format("{}, {}", kAllTensors, base)},
      {"LogTensorStats with a budget of 3%", fmt::format("{}, {}", kAllTensors, base),
       "transformer_engine", "3%"},
      {"LogFp8TensorStats",
       inputs + ", stats: [underflows%, overflows%, scale_inv_min, scale_inv_max, mse]"},
      {"LogNvfp4TensorStats", inputs + ", stats: [underflows%, mse]"},
      {"FakeQuant", operands + ", quant_format: FP8E4M3"},
      {"PerTensorScaling", operands},
      {"DisableFP8GEMM", kAllGemms},
      {"DisableFP8Layer", ""},
      {"DumpTensors", inputs + ", high_precision_tensor: True, quantized_tensor: True"},
      {"PrecisionLedger", "", "telens"},
      {"ValueHistogram", inputs, "telens"},
      {"ValueHistogram of codes", inputs + ", bins: codes", "telens"},
      {"GemmError", kAllGemms, "telens"},
      {"ScaleHealth", inputs, "telens"},
      {"Trigger", "when: [loss spikes > 2x, nonfinite of gradient > 0]", "telens"},
      {"RankAgreement", inputs, "telens"},  // one rank makes digests and has none to send them to
      {"TensorDigests", kAllTensors, "telens"},
      {"CollectiveCheck", "", "telens"},
      {"Diagnosis", "", "telens"},  // its run records nothing else
  };
}

// The features stand for the files in configs/, which have a budget.
constexpr const char* kProduction = "production.yaml";
constexpr const char* kFlightRecorder = "flight_recorder.yaml";

std::string to_text(const std::string& config) {
  std::ifstream file(fmt::format("{}/{}", TELENS_CONFIGS, config));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.empty()) telens::raise<telens::UsageError>("{}: no such file in configs/", config);
  return text;
}

// The configuration with another line in place of its `budget`.
std::string with_budget_line(std::string config, const std::string& line) {
  const auto begin = config.find("  budget:");
  if (begin == std::string::npos) telens::raise<telens::UsageError>("the file has no budget");
  return config.replace(begin, config.find('\n', begin) + 1 - begin, line);
}

std::vector<FeatureSection> with_mxfp8() { return {{"BlockTelemetry", kInputs, "telens"}}; }

// A configuration that is compared with no session.
struct Watched {
  std::string name;
  std::string config;
  int steps;
  int steps_before = 1;  // in the session, not measured
};

// Whatever a feature wrote beside the run file is gone after its round.
Contender contender(const Watched& watched, SampleTraining& training, const std::string& folder) {
  const std::string own = folder + "/" + watched.name;
  return {watched.name,
          [&training, steps = watched.steps] {
            for (int i = 0; i < steps; ++i) training.step();
          },
          [&training, config = watched.config, own, steps = watched.steps_before] {
            telens::benchmark::begin_session(config, own);
            for (int i = 0; i < steps; ++i) training.step();
          },
          [own] {
            telens::debug::end_debug();
            std::filesystem::remove_all(own);
          }};
}

std::vector<Watched> all_of(const std::vector<FeatureSection>& sections, int rounds) {
  std::vector<Watched> all;
  for (const FeatureSection& section : sections) {
    const bool has_budget = !section.budget.empty();
    all.push_back({section.name, get_config(section),
                   has_budget ? steps_with_budget(rounds) : kSteps, has_budget ? kFullSteps : 1});
  }
  return all;
}

void compare(const std::string& precision, const std::vector<Watched>& all,
             const telens::benchmark::Arguments& arguments) {
  SampleTraining training(gpt::TrainingOptions().batch, precision);
  // Each beside steps without it: a machine's speed changes over the time that all of them take.
  for (const Watched& watched : all) {
    const Contender plain{"no session",
                          [&] {
                            for (int i = 0; i < watched.steps; ++i) training.step();
                          },
                          [&] { training.step(); }};
    telens::benchmark::compare(precision + ' ' + watched.name,
                               {plain, contender(watched, training, arguments.folder)},
                               {.rounds = arguments.rounds});
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments =
      telens::benchmark::parse_arguments(argc, argv, "The sample's step, feature by feature.");
  at::manual_seed(1);
  std::vector<Watched> delayed = all_of(with_delayed_scaling(), arguments.rounds);
  const int steps = steps_with_budget(arguments.rounds);
  delayed.push_back({kProduction, to_text(kProduction), steps});  // its budget has no full steps
  delayed.push_back({kFlightRecorder, with_budget_line(to_text(kFlightRecorder), budget_line("3%")),
                     steps, kFullSteps});
  delayed.push_back({fmt::format("{} without budget", kFlightRecorder),
                     with_budget_line(to_text(kFlightRecorder), ""), kSteps});
  compare("delayed", delayed, arguments);
  compare("mxfp8", all_of(with_mxfp8(), arguments.rounds), arguments);
  return 0;
}
