// Loading a configuration of 100 sections, and finding the features of 1,000 layers in it.
#include <fmt/format.h>

#include <chrono>

#include "benchmarks/arguments.h"
#include "benchmarks/side_by_side.h"
#include "core/base/error.h"
#include "features/builtin_options.h"
#include "hooks/config/config.h"

namespace {

constexpr int kSections = 100;
constexpr int kLayers = 1000;
constexpr int kLayersOfSection = kLayers / kSections;

// Each section selects its own ten layers, in one of the four ways.
std::string layers_of(int section) {
  const int first = section * kLayersOfSection, last = first + kLayersOfSection - 1;
  switch (section % 4) {
    case 0:
      return fmt::format("{{layer_numbers: {}-{}}}", first, last);
    case 1:
      return fmt::format("{{layer_name_regex_pattern: '^(?=.*fc1)layers\\.{}\\d\\.'}}", section);
    case 2:
      return fmt::format("{{layer_types: [fc1, fc2], layer_numbers: [{}-{}]}}", first, last);
    default:
      break;
  }
  std::string names;
  for (int layer = first; layer <= last; ++layer) {
    names += fmt::format("{}layers.{}.mlp.fc1", names.empty() ? "" : ", ", layer);
  }
  return fmt::format("{{exact_layer_names: [{}]}}", names);
}

std::string config_text() {
  std::string text;
  for (int section = 0; section < kSections; ++section) {
    text += fmt::format(R"(
section_{}:
  enabled: True
  layers: {}
  transformer_engine:
    LogTensorStats:
      enabled: True
      tensors: [activation, weight, gradient]
      stats: [min, max, mean, std, l2_norm]
      freq: {}
    FakeQuant:
      enabled: True
      quant_format: FP8E4M3
      gemms_struct:
        - gemm: fprop
          tensors: [activation, weight]
        - gemm: dgrad
          tensors_struct: [{{tensor: gradient, quant_format: FP8E5M2}}]
)",
                        section, layers_of(section), 1 + section % 10);
  }
  return text;
}

std::vector<std::string> layer_names() {
  std::vector<std::string> names;
  for (int layer = 0; layer < kLayers; ++layer) {
    names.push_back(fmt::format("layers.{}.mlp.fc1", layer));
  }
  return names;
}

double seconds_to_load_and_resolve(const std::string& text, const std::vector<std::string>& names) {
  const auto start = std::chrono::steady_clock::now();
  const auto config =
      telens::config::load_config_text(text, "config", telens::features::builtin_descriptions());
  std::size_t entries = 0;
  for (const std::string& name : names) entries += config.entries_for(name).size();
  const double seconds = telens::benchmark::seconds_since(start);
  if (entries != 2 * names.size()) telens::raise<telens::Error>("{} features were found", entries);
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = telens::benchmark::parse_arguments(argc, argv, "Load and resolve.");
  const std::string text = config_text();
  const std::vector<std::string> names = layer_names();
  std::vector<double> samples;
  for (int round = 0; round < arguments.rounds; ++round) {
    samples.push_back(seconds_to_load_and_resolve(text, names));
  }
  telens::benchmark::print_samples("load and resolve", {"telens"}, {samples});
}
