// GemmError: the error that a GEMM's precision causes. Options and description; no LibTorch.
#pragma once

#include <cstdint>
#include <string_view>

#include "hooks/config/feature_description.h"

namespace telens::features {

inline constexpr std::string_view kGemmRelativeError = "gemm_relative_error";
inline constexpr std::string_view kGemmMeanError = "gemm_mean_error";
inline constexpr std::string_view kGemmCosine = "gemm_cosine";

struct GemmErrorOptions {
  std::int64_t samples = 256;
};

config::FeatureDescription gemm_error_description();

}  // namespace telens::features
