// Comparing codes bit for bit, with a message that shows the first difference.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

namespace telens::testing {

// Expects actual[i] == expected(i) for every i. A failure names the first i that differs, its bits,
// and what describe(i) says of the input.
template <std::unsigned_integral Bits, typename Expected, typename Describe>
::testing::AssertionResult same_bits(std::span<const Bits> actual, const Expected& expected,
                                     const Describe& describe) {
  std::size_t differences = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] != expected(i) && differences++ == 0) first = i;
  }
  if (differences == 0) return ::testing::AssertionSuccess();
  constexpr int kDigits = 2 * sizeof(Bits);
  return ::testing::AssertionFailure() << fmt::format(
             "{} of {} codes differ; the first at index {}: expected 0x{:0{}x}, got 0x{:0{}x} for "
             "{}",
             differences, actual.size(), first, static_cast<Bits>(expected(first)), kDigits,
             actual[first], kDigits, describe(first));
}

}  // namespace telens::testing
