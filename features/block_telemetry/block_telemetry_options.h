// BlockTelemetry: statistics per block of block formats. Options and description; no LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/formats/scheme.h"
#include "hooks/config/feature_description.h"

namespace telens::features {

// Statistics of the two copies together, in addition to kBlockStatistics
// (hooks/statistics/accumulator.h).
inline constexpr std::string_view kCopiesDiffer = "copies_differ%";
inline constexpr std::string_view kCopiesRelativeDifference = "copies_relative_difference";

// Measures by which single blocks are ranked.
inline constexpr std::string_view kBlockUnderflows = "block_underflows%";
inline constexpr std::string_view kBlockMse = "block_mse";

// Returns the name of a statistic for a copy.
std::string name_of_copy(std::string_view statistic, bool columnwise);

// Returns the name of the histogram of a mode's scales: "scale_histogram_e8m0", ..._e4m3, ..._fp32.
// `mode` must have blocks.
std::string_view scale_histogram_name(ScalingMode mode);

struct BlockTelemetryOptions {
  std::int64_t k = 8;
};

config::FeatureDescription block_telemetry_description();

}  // namespace telens::features
