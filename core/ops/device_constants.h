// Constants with which operators begin, on any device. The host waits for the device only when
// constants are requested for the first time, and never while a graph is captured.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace telens::ops {

// Returns plain data of 8-byte fields (core/ops/statistics_layout.h) as words.
template <typename Sums>
std::vector<std::int64_t> get_words(const Sums& sums) {
  const auto words =
      std::bit_cast<std::array<std::int64_t, sizeof(Sums) / sizeof(std::int64_t)>>(sums);
  return {words.begin(), words.end()};
}

// Returns a new int64 vector of these words on the device. The first call copies them from the
// host; later calls copy within the device, in the order of its current stream.
at::Tensor constants_on(const at::Device& device, const std::vector<std::int64_t>& words);

}  // namespace telens::ops
