#include "core/ops/collective_sums.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <vector>

#include "core/base/fnv1a.h"
#include "core/ops/tensor_digest.h"

namespace telens::ops {
namespace {

// 2 MiB in FP64, which stays in a cache; a whole gradient may have gigabytes.
constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 18;

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

// The factor of a digest's second word: 2^64 over the golden ratio, odd, as in core/base/fnv1a.h.
constexpr auto kSecondWord = static_cast<std::int64_t>(0x9E3779B97F4A7C15U);

// Odd, so that no digest is lost.
std::int64_t get_factor(std::int64_t from, std::int64_t to) {
  const std::uint64_t hash =
      mixed(static_cast<std::uint64_t>(from) + 1, static_cast<std::uint64_t>(to) + 1);
  return static_cast<std::int64_t>(hash | 1U);
}

}  // namespace

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

at::Tensor exchange_words(const ExchangedRows& exchanged) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = exchanged.rows.detach();
  at::Tensor words = at::zeros({kExchangeWords}, rows.options().dtype(at::kLong));
  std::int64_t first = 0;
  for (std::int64_t other = 0; other < std::ssize(exchanged.counts); ++other) {
    const std::int64_t count = exchanged.counts[static_cast<std::size_t>(other)];
    const at::Tensor digest = compute_digest(rows.narrow(0, first, count).reshape({-1}));
    const std::int64_t factor =
        exchanged.received ? get_factor(other, exchanged.rank) : get_factor(exchanged.rank, other);
    words[other % kExchangeWords] += (digest[0] + digest[1] * kSecondWord) * factor;
    first += count;
  }
  return words;
}

}  // namespace telens::ops
