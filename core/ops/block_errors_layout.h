// The errors of block formats in each block of a tensor, and how the two copies of a tensor differ:
// plain data that a kernel writes as int64 words (core/ops/block_errors.h). No LibTorch.
#pragma once

#include <cstdint>

namespace telens {

// One block. Underflows and saturation as CastSums has them (core/ops/statistics_layout.h).
struct BlockErrors {
  std::int32_t elements = 0;  // that the tensor has there: blocks end with their line
  std::int32_t nonzero = 0;   // 1: at least one element was not zero; a NaN is not
  std::int32_t underflows = 0;
  std::int32_t saturated = 0;
  double squared_error = 0;  // sum of (decoded - x)^2
};

// Compares the values that the rowwise and the columnwise copy of a tensor stand for, in FP32.
struct CopiesDifference {
  std::int64_t elements = 0;
  std::int64_t different = 0;  // two NaN are equal
  double relative = 0;         // sum of |a - b| / max(|a|, |b|) in FP32; 0 where they are equal
};

inline constexpr std::int64_t kBlockErrorsWords = sizeof(BlockErrors) / sizeof(std::int64_t);
inline constexpr std::int64_t kCopiesDifferenceWords =
    sizeof(CopiesDifference) / sizeof(std::int64_t);

constexpr void merge(CopiesDifference& into, const CopiesDifference& part) {
  into.elements += part.elements;
  into.different += part.different;
  into.relative += part.relative;
}

}  // namespace telens
