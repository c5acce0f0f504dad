// Sums and samples of a tensor that goes into a collective or comes out of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "core/distributed/collective_watch.h"

namespace telens::features {

inline constexpr std::size_t kSamples = 8;

// As doubles side by side, the way they come from a device.
struct CollectiveSums {
  double sum = 0;        // in FP64, finite elements alone
  double magnitude = 0;  // sum of |x| of the same
  double nonfinite = 0;  // NaN and infinite elements; under a maximum without -infinity
  std::array<double, kSamples> samples{};
};
inline constexpr std::int64_t kSumsNumbers = 3 + kSamples;

// Elements of a tensor of that size whose values are sent, in increasing order: spread evenly, the
// first and the last one among them.
std::array<std::int64_t, kSamples> sampled_elements(std::int64_t numel);

// x: any floating dtype -> FP64 [kSumsNumbers] on its device; a part at a time, never a copy of x
// in FP64. `first`, `whole`: x is the elements from `first` on of a tensor of that size, and
// samples are the whole one's; those that lie elsewhere are NaN.
at::Tensor collective_sums(const at::Tensor& x, CollectiveKind kind, std::int64_t first,
                           std::int64_t whole);
CollectiveSums read_sums(const at::Tensor& on_host);

// By how much a sum of `ranks` numbers of this dtype with magnitudes that add up to `magnitude` may
// differ from the exact one, in any order: gamma_n = n u / (1 - n u), Higham, "Accuracy and
// Stability of Numerical Algorithms" (2002), 4.2. Infinite where that says nothing.
double summation_bound(at::ScalarType dtype, std::int64_t ranks, double magnitude);

}  // namespace telens::features
