#include "features/collective_check/collective_sums.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <vector>

namespace telens::features {
namespace {

// 2 MiB in FP64, which stays in a cache; a whole gradient may have gigabytes.
constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 18;

// Returns the unit roundoff: half the distance from 1 to the next number. Integers are not rounded.
double unit_roundoff(at::ScalarType dtype) {
  if (at::isIntegralType(dtype, /*includeBool=*/false)) return 0;
  switch (dtype) {
    case at::kDouble:
      return 0x1p-53;
    case at::kFloat:
      return 0x1p-24;
    case at::kHalf:
      return 0x1p-11;
    case at::kBFloat16:
      return 0x1p-8;
    default:
      return 1;
  }
}

// Converts values in FP64 to sum, magnitude and count of CollectiveSums.
at::Tensor sums_of_part(const at::Tensor& values, CollectiveKind kind) {
  const at::Tensor is_finite = values.isfinite();
  const at::Tensor finite = at::where(is_finite, values, at::scalar_tensor(0, values.options()));
  at::Tensor nonfinite = is_finite.logical_not();
  if (kind == CollectiveKind::maximum) {
    nonfinite = nonfinite.logical_and(values.ne(-std::numeric_limits<double>::infinity()));
  }
  return at::stack({finite.sum(), finite.abs().sum(), nonfinite.sum().to(at::kDouble)});
}

}  // namespace

std::array<std::int64_t, kSamples> sampled_elements(std::int64_t numel) {
  std::array<std::int64_t, kSamples> elements{};
  constexpr auto kLast = static_cast<std::int64_t>(kSamples) - 1;
  for (std::int64_t i = 0; i <= kLast; ++i) {
    elements[static_cast<std::size_t>(i)] =
        (numel - 1) / kLast * i + (numel - 1) % kLast * i / kLast;
  }
  return elements;
}

at::Tensor collective_sums(const at::Tensor& x, CollectiveKind kind, std::int64_t first,
                           std::int64_t whole) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = x.detach().reshape({-1});
  at::Tensor sums = at::zeros({3}, values.options().dtype(at::kDouble));
  for (const at::Tensor& part : values.split(kElementsAtOnce)) {
    sums += sums_of_part(part.to(at::kDouble), kind);
  }
  std::vector<at::Tensor> samples;
  const at::Tensor elsewhere =
      at::scalar_tensor(std::numeric_limits<double>::quiet_NaN(), sums.options());
  for (const std::int64_t element : sampled_elements(whole)) {
    const std::int64_t at = element - first;
    const bool is_here = at >= 0 && at < values.numel();
    samples.push_back(is_here ? values[at].to(at::kDouble) : elsewhere);
  }
  return at::cat({sums, at::stack(samples)});
}

CollectiveSums read_sums(const at::Tensor& on_host) {
  const auto* numbers = on_host.const_data_ptr<double>();
  CollectiveSums sums{.sum = numbers[0], .magnitude = numbers[1], .nonfinite = numbers[2]};
  for (std::size_t i = 0; i < kSamples; ++i) sums.samples[i] = numbers[3 + i];
  return sums;
}

double summation_bound(at::ScalarType dtype, std::int64_t ranks, double magnitude) {
  const double nu = static_cast<double>(ranks) * unit_roundoff(dtype);
  if (nu >= 0.5) return std::numeric_limits<double>::infinity();
  return nu / (1 - nu) * magnitude;
}

}  // namespace telens::features
