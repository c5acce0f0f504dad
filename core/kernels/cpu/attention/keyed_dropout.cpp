// Dropout by a key on the CPU: rows of weights, each with its own counters.
#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/kernels/cpu/grain.h"
#include "core/ops/attention.h"

namespace telens {
namespace {

// Fewer than the usual 10 rounds. With 7, Philox still passes every test of its paper.
constexpr std::int32_t kRounds = 7;
// Random words per counter.
constexpr std::int64_t kWords = 4;

// A row's random choices, and the factor of the weights that are kept.
struct RowDropout {
  std::uint64_t seed, subsequence, query;
  std::uint64_t threshold;  // a word below it keeps its weight
};

template <typename T>
void drop_row(T* weights, std::int64_t first_key, std::int64_t keys, const RowDropout& row,
              T factor) {
  const auto skipped = static_cast<std::uint64_t>(first_key / kWords);
  // LibTorch's engine has (offset, subsequence) for its counter of 128 bits.
  at::Philox4_32 words(row.seed, row.subsequence, (row.query << 32) + skipped);
  for (std::int64_t i = 0; i < first_key % kWords; ++i) words(kRounds);
  for (std::int64_t key = 0; key < keys; ++key) {
    weights[key] *= words(kRounds) < row.threshold ? factor : T{0};
  }
}

template <typename T>
void drop_all(at::Tensor& weights, std::int64_t seed, double probability, at::IntArrayRef place) {
  const std::int64_t heads = weights.size(1), queries = weights.size(2), keys = weights.size(3);
  const auto factor = static_cast<T>(probability == 1 ? 0 : 1 / (1 - probability));
  const auto threshold = static_cast<std::uint64_t>(std::ldexp(1 - probability, 32));
  T* data = weights.mutable_data_ptr<T>();
  const std::int64_t grain =
      std::max<std::int64_t>(1, kernels::kGrain / std::max<std::int64_t>(1, keys));
  at::parallel_for(0, weights.size(0) * heads * queries, grain,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t row = begin; row < end; ++row) {
                       const std::int64_t sample = place[0] + row / queries / heads;
                       const std::int64_t head = place[1] + row / queries % heads;
                       drop_row<T>(data + row * keys, place[3], keys,
                                   {.seed = static_cast<std::uint64_t>(seed),
                                    .subsequence = (static_cast<std::uint64_t>(head) << 32) +
                                                   static_cast<std::uint64_t>(sample),
                                    .query = static_cast<std::uint64_t>(place[2] + row % queries),
                                    .threshold = threshold},
                                   factor);
                     }
                   });
}

at::Tensor& keyed_dropout(at::Tensor& weights, std::int64_t seed, double probability,
                          at::IntArrayRef place) {
  ops::check_keyed_dropout(weights, probability, place);
  if (weights.numel() == 0) return weights;
  if (weights.scalar_type() == at::kDouble) {
    drop_all<double>(weights, seed, probability, place);
  } else {
    drop_all<float>(weights, seed, probability, place);
  }
  return weights;
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("keyed_dropout_", TORCH_FN(telens::keyed_dropout));
}
