// BlockTelemetry: the blocks of block formats one by one. Options and description; no LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/formats/scheme.h"
#include "hooks/config/feature_description.h"

namespace telens::features {

// Beside kBlockStatistics (hooks/statistics/block_sums.h), of the two copies together.
inline constexpr std::string_view kCopiesDiffer = "copies_differ%";
inline constexpr std::string_view kCopiesRelativeDifference = "copies_relative_difference";

// Measures by which single blocks are ranked.
inline constexpr std::string_view kBlockUnderflows = "block_underflows%";
inline constexpr std::string_view kBlockMse = "block_mse";

// The name of a statistic of one copy.
std::string name_of_copy(std::string_view statistic, bool columnwise);

// The histogram of a mode's scales: "scale_histogram_e8m0", ..._e4m3, ..._fp32. `mode`: of blocks.
std::string_view scale_histogram_name(ScalingMode mode);

struct BlockTelemetryOptions {
  std::int64_t k = 8;
};

config::FeatureDescription block_telemetry_description();

}  // namespace telens::features
