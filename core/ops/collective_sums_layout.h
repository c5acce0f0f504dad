// The numbers by which the ranks of a collective compare what they sent and received. No LibTorch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace telens {

inline constexpr std::size_t kSamples = 8;

// Adjacent doubles, in the layout in which a device returns them.
struct CollectiveSums {
  double sum = 0;        // in FP64, only finite elements
  double magnitude = 0;  // sum of |x| over the same elements
  double nonfinite = 0;  // NaN and infinite elements; for a maximum, without -infinity
  std::array<double, kSamples> samples{};
};
inline constexpr std::int64_t kSumsNumbers = 3 + kSamples;

// Returns the elements of a tensor of that size whose values are sent, in increasing order: spread
// evenly, including the first and the last element.
constexpr std::array<std::int64_t, kSamples> sampled_elements(std::int64_t numel) {
  std::array<std::int64_t, kSamples> elements{};
  constexpr auto kLast = static_cast<std::int64_t>(kSamples) - 1;
  for (std::int64_t i = 0; i <= kLast; ++i) {
    elements[static_cast<std::size_t>(i)] =
        (numel - 1) / kLast * i + (numel - 1) % kLast * i / kLast;
  }
  return elements;
}

// Ranks in a group share a word if their numbers have the same remainder. If a group has at most as
// many ranks as words, each pair of ranks has a separate word.
inline constexpr std::int64_t kExchangeWords = 11;

}  // namespace telens
