// Errors of block formats in each block of a tensor, and the difference between the two copies of a
// tensor: plain data that a kernel writes as int64 words (core/ops/block_errors.h). No LibTorch.
#pragma once

#include <cstdint>

namespace telens {

// One block. Underflows and saturation are defined as in CastSums (core/ops/statistics_layout.h).
struct BlockErrors {
  std::int32_t elements = 0;  // elements of the tensor in the block: blocks end with their line
  std::int32_t nonzero = 0;   // 1 if at least one element was not zero; NaN does not count
  std::int32_t underflows = 0;
  std::int32_t saturated = 0;
  double squared_error = 0;  // sum of (decoded - x)^2
};

// Compares the values of a tensor's rowwise and columnwise copies in FP32.
struct CopiesDifference {
  std::int64_t elements = 0;
  std::int64_t different = 0;  // two NaN are equal
  double relative = 0;         // sum of |a - b| / max(|a|, |b|) in FP32; 0 if they are equal
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
