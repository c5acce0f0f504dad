#include "core/ops/tensor_digest.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "core/base/fnv1a.h"

namespace telens::ops {
namespace {

constexpr std::int64_t kColumns = 4096;
constexpr std::int64_t kRowsAtOnce = 128;  // 4 MiB of int64: stays in a cache
constexpr int kDigests = 2;

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014): SplitMix64.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = state += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

// int64 [2, kColumns] on the device.
at::Tensor multipliers_on(const at::Device& device) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::string, at::Tensor>;  // outlives torch's own
  const std::lock_guard lock(mutex);
  at::Tensor& made = (*known)[device.str()];
  if (made.defined()) return made;
  at::Tensor host = at::empty({kDigests, kColumns}, at::kLong);
  std::uint64_t state = 0;
  auto* numbers = host.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < host.numel(); ++i) {
    numbers[i] = static_cast<std::int64_t>(next_random(state) | 1);
  }
  return made = host.to(device);
}

// Views the elements as integers of their size, and elements of 8 bytes or more as several.
at::Tensor get_words(const at::Tensor& x) {
  const at::Tensor flat = x.detach().contiguous().view({-1});
  switch (flat.element_size()) {
    case 1:
      return flat.view(at::kByte);
    case 2:
      return flat.view(at::kShort);
    default:
      return flat.view(at::kInt);
  }
}

// Returns the multipliers of rows `first`, first + 1, ... as int64 [rows]: odd numbers computed
// from the rows' numbers.
at::Tensor row_multipliers(std::int64_t first, std::int64_t rows, int digest,
                           const at::Device& device) {
  const at::Tensor numbers =
      at::arange(first + 1, first + rows + 1, at::TensorOptions().dtype(at::kLong).device(device));
  constexpr auto kFactor = static_cast<std::int64_t>(0xBF58476D1CE4E5B9U);
  const at::Tensor once = (numbers * kFactor + digest) * kFactor;
  return once.bitwise_xor(once.bitwise_right_shift(29)).mul(kFactor).bitwise_or(1);
}

// Adds the digest of int64 rows [rows, columns].
void add_rows(const at::Tensor& rows, std::int64_t first, const at::Tensor& multipliers,
              at::Tensor& digest) {
  for (int i = 0; i < kDigests; ++i) {
    const at::Tensor by_column = multipliers[i].slice(0, 0, rows.size(1));
    const at::Tensor sums = (rows * by_column).sum(1);
    digest[i].add_((sums * row_multipliers(first, rows.size(0), i, rows.device())).sum());
  }
}

}  // namespace

at::Tensor compute_digest(const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  const std::string kind =
      fmt::format("{} {}", c10::toString(x.scalar_type()), fmt::join(x.sizes(), ","));
  at::Tensor digest = at::full({kDigests}, static_cast<std::int64_t>(fnv1a(kind)),
                               at::TensorOptions().dtype(at::kLong).device(x.device()));
  if (x.numel() == 0) return digest;
  const at::Tensor words = get_words(x);
  const at::Tensor multipliers = multipliers_on(x.device());
  const std::int64_t whole = words.numel() / kColumns;
  for (std::int64_t first = 0; first < whole; first += kRowsAtOnce) {
    const std::int64_t rows = std::min(kRowsAtOnce, whole - first);
    const at::Tensor part = words.slice(0, first * kColumns, (first + rows) * kColumns);
    add_rows(part.view({rows, kColumns}).to(at::kLong), first, multipliers, digest);
  }
  const at::Tensor rest = words.slice(0, whole * kColumns);
  if (rest.numel() > 0) add_rows(rest.view({1, -1}).to(at::kLong), whole, multipliers, digest);
  return digest;
}

}  // namespace telens::ops
