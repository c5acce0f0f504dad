#include "features/collective_check/exchange_words.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "core/base/fnv1a.h"
#include "hooks/engine/tensor_digest.h"

namespace telens::features {
namespace {

// The factor of a digest's second word: 2^64 over the golden ratio, odd, as in core/base/fnv1a.h.
constexpr auto kSecondWord = static_cast<std::int64_t>(0x9E3779B97F4A7C15U);

// Odd, so that no digest is lost.
std::int64_t get_factor(std::int64_t from, std::int64_t to) {
  const std::uint64_t hash =
      mixed(static_cast<std::uint64_t>(from) + 1, static_cast<std::uint64_t>(to) + 1);
  return static_cast<std::int64_t>(hash | 1U);
}

}  // namespace

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

}  // namespace telens::features
