#include "features/collective_check/collective_sums.h"

#include <limits>

namespace telens::features {
namespace {

// Returns the unit roundoff: half the distance from 1 to the next number. Integers are not rounded.
double unit_roundoff(DType dtype) {
  constexpr auto kUint16 = static_cast<DType>(27);
  constexpr auto kUint64 = static_cast<DType>(29);
  if (is_integer(dtype) || (dtype >= kUint16 && dtype <= kUint64)) return 0;
  switch (dtype) {
    case DType::float64:
      return 0x1p-53;
    case DType::float32:
      return 0x1p-24;
    case DType::float16:
      return 0x1p-11;
    case DType::bfloat16:
      return 0x1p-8;
    default:
      return 1;
  }
}

}  // namespace

CollectiveSums read_sums(const TensorHandle& on_host) {
  const auto* numbers = on_host.const_data_ptr<double>();
  CollectiveSums sums{.sum = numbers[0], .magnitude = numbers[1], .nonfinite = numbers[2]};
  for (std::size_t i = 0; i < kSamples; ++i) sums.samples[i] = numbers[3 + i];
  return sums;
}

double summation_bound(DType dtype, std::int64_t ranks, double magnitude) {
  const double nu = static_cast<double>(ranks) * unit_roundoff(dtype);
  if (nu >= 0.5) return std::numeric_limits<double>::infinity();
  return nu / (1 - nu) * magnitude;
}

}  // namespace telens::features
