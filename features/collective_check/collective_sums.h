// Sums and samples of a collective's input or output tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "core/distributed/collective_watch.h"

namespace telens::features {

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
std::array<std::int64_t, kSamples> sampled_elements(std::int64_t numel);

// x: any floating dtype. Returns FP64 [kSumsNumbers] on x's device. Converts a part at a time to
// FP64, never all of x. `first`, `whole`: x holds the elements from `first` on of a tensor of that
// size. Samples refer to the whole tensor; samples outside x are NaN.
at::Tensor collective_sums(const at::Tensor& x, CollectiveKind kind, std::int64_t first,
                           std::int64_t whole);
CollectiveSums read_sums(const at::Tensor& on_host);

// Returns the bound on the error of a sum of `ranks` numbers of this dtype, added in any order, if
// their magnitudes add up to `magnitude`: gamma_n = n u / (1 - n u), Higham, "Accuracy and
// Stability of Numerical Algorithms" (2002), 4.2. Infinite if the formula gives no bound.
double summation_bound(at::ScalarType dtype, std::int64_t ranks, double magnitude);

}  // namespace telens::features
