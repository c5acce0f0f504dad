// Constants that operators begin with, on any device. Only the first time that some are asked for
// the host waits for the device; not while a graph is captured.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace telens::ops {

// Plain data of 8-byte fields (core/ops/statistics_layout.h) as words.
template <typename Sums>
std::vector<std::int64_t> get_words(const Sums& sums) {
  const auto words =
      std::bit_cast<std::array<std::int64_t, sizeof(Sums) / sizeof(std::int64_t)>>(sums);
  return {words.begin(), words.end()};
}

// A new int64 vector of these words on the device. They are copied there the first time; from then
// on a copy within the device makes each further one, in the order of its current stream.
at::Tensor constants_on(const at::Device& device, const std::vector<std::int64_t>& words);

}  // namespace telens::ops
