// A configuration of 100 sections for 1,000 layers.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

namespace telens::benchmark {

inline constexpr int kSections = 100;
inline constexpr int kLayers = 1000;
inline constexpr int kLayersOfSection = kLayers / kSections;

// Each section selects its own ten layers, in one of the four ways.
inline std::string get_layers(int section) {
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

// Two features a section, due from iteration `start_step` on.
inline std::string large_config(int start_step = 0) {
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
      start_step: {}
    FakeQuant:
      enabled: True
      quant_format: FP8E4M3
      start_step: {}
      gemms_struct:
        - gemm: fprop
          tensors: [activation, weight]
        - gemm: dgrad
          tensors_struct: [{{tensor: gradient, quant_format: FP8E5M2}}]
)",
                        section, get_layers(section), 1 + section % 10, start_step, start_step);
  }
  return text;
}

inline std::vector<std::string> large_config_layers() {
  std::vector<std::string> names;
  for (int layer = 0; layer < kLayers; ++layer) {
    names.push_back(fmt::format("layers.{}.mlp.fc1", layer));
  }
  return names;
}

}  // namespace telens::benchmark
