// Debug sessions of benchmarks: every statistic of every tensor, or none of this layer.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "hooks/debug.h"

namespace telens::benchmark {

// All base and FP8 statistics of all tensors of all layers, in every freq-th iteration.
inline std::string all_statistics(int freq = 1) {
  return fmt::format(R"(
everything:
  enabled: True
  layers: {{layer_types: all}}
  transformer_engine:
    LogTensorStats:
      enabled: True
      tensors: [activation, weight, gradient, output, wgrad, dgrad]
      stats: [min, max, mean, std, l1_norm, l2_norm, cur_amax, dynamic_range]
      freq: {0}
    LogFp8TensorStats:
      enabled: True
      tensors: [activation, weight, gradient]
      stats: [underflows%, overflows%, scale_inv_min, scale_inv_max, mse]
      freq: {0}
)",
                     freq);
}

// A feature that is on, for a layer that does not exist.
inline std::string another_layer() {
  return R"(
elsewhere:
  enabled: True
  layers: {exact_layer_names: [a layer that does not exist]}
  transformer_engine:
    LogTensorStats: {enabled: True, tensors: [activation], stats: [mean]}
)";
}

inline void begin_session(const std::string& config, const std::string& folder,
                          std::int64_t first_iteration = 0) {
  debug::InitializeOptions options;
  options.config_text = config;
  options.log_dir = folder;
  options.init_training_step = first_iteration;
  debug::initialize(options);
}

}  // namespace telens::benchmark
