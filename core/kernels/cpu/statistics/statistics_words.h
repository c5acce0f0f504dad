// Conversion between tensors and the structs of core/ops/statistics_layout.h.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "core/formats/format_id.h"

namespace telens::kernels {

// dtype: one of the three that core/ops/statistics.h accepts.
inline FormatId get_format(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return FormatId::bf16;
  return dtype == at::kHalf ? FormatId::fp16 : FormatId::fp32;
}

template <typename Sums>
using Words = std::array<std::int64_t, sizeof(Sums) / sizeof(std::int64_t)>;

template <typename Sums>
void store_words(const Sums& sums, std::int64_t* words) {
  const auto copy = std::bit_cast<Words<Sums>>(sums);
  std::copy(copy.begin(), copy.end(), words);
}

template <typename Sums>
void merge_words(const Sums& sums, std::int64_t* words) {
  Words<Sums> copy;
  std::copy_n(words, copy.size(), copy.begin());
  auto merged = std::bit_cast<Sums>(copy);
  merge(merged, sums);
  store_words(merged, words);
}

}  // namespace telens::kernels
