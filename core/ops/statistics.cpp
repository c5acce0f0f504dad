#include "core/ops/statistics.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <bit>

#include "core/ops/statistics_checks.h"
#include "core/ops/statistics_layout.h"

namespace telens {
namespace {

constexpr auto kWordType = at::kLong;

bool is_fp8(std::int64_t format) {
  return format == static_cast<std::int64_t>(FormatId::e4m3) ||
         format == static_cast<std::int64_t>(FormatId::e5m2);
}

void check_dtype(const char* operation, const at::Tensor& x) {
  const at::ScalarType dtype = x.scalar_type();
  if (dtype != at::kBFloat16 && dtype != at::kHalf && dtype != at::kFloat) {
    raise<ShapeError>("{}: x has dtype {}; expected BFloat16, Half or Float; convert it first",
                      operation, c10::toString(dtype));
  }
}

std::vector<std::int64_t> as_integers(const std::vector<FormatId>& formats) {
  std::vector<std::int64_t> integers(formats.size());
  std::transform(formats.begin(), formats.end(), integers.begin(),
                 [](FormatId format) { return static_cast<std::int64_t>(format); });
  return integers;
}

template <typename Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

template <typename Sums>
void append(std::vector<std::int64_t>& words, const Sums& sums) {
  const auto copy =
      std::bit_cast<std::array<std::int64_t, sizeof(Sums) / sizeof(std::int64_t)>>(sums);
  words.insert(words.end(), copy.begin(), copy.end());
}

}  // namespace

void check_statistics(const at::Tensor& x, at::TensorList scales, at::IntArrayRef formats) {
  check_dtype("statistics", x);
  if (scales.size() != formats.size()) {
    raise<UsageError>("statistics: {} scales and {} formats; expected one scale per format",
                      scales.size(), formats.size());
  }
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const at::Tensor& scale = scales[i];
    if (scale.scalar_type() != at::kFloat || scale.numel() != 1) {
      raise<ShapeError>("statistics: scale {} is {} with {} elements; expected Float with 1", i,
                        c10::toString(scale.scalar_type()), scale.numel());
    }
    if (scale.device() != x.device()) {
      raise<ShapeError>("statistics: scale {} is on {} and x on {}; move one of them", i,
                        scale.device().str(), x.device().str());
    }
    if (!is_fp8(formats[i])) {
      raise<UsageError>("statistics: format {} is {}; expected E4M3 (0) or E5M2 (1)", i,
                        formats[i]);
    }
  }
}

void check_blockwise_dynamic_range(const at::Tensor& x, std::int64_t block_size,
                                   std::int64_t dims) {
  check_dtype("blockwise_dynamic_range", x);
  if (block_size < 1) {
    raise<UsageError>("blockwise_dynamic_range: block_size is {}; expected at least 1", block_size);
  }
  if (dims != 1 && dims != 2) {
    raise<UsageError>("blockwise_dynamic_range: dims is {}; expected 1 or 2", dims);
  }
}

void check_accumulator(const char* operation, const at::Tensor& x, const at::Tensor& accumulator,
                       std::int64_t words) {
  if (accumulator.scalar_type() != kWordType || accumulator.numel() != words ||
      !accumulator.is_contiguous() || accumulator.device() != x.device()) {
    raise<ShapeError>(
        "{}: the accumulator is {} with {} elements on {}; expected contiguous Long with {} on {}, "
        "made for as many casts",
        operation, c10::toString(accumulator.scalar_type()), accumulator.numel(),
        accumulator.device().str(), words, x.device().str());
  }
}

at::Tensor statistics(const at::Tensor& x, const StatisticsCasts& casts) {
  using Signature = at::Tensor(const at::Tensor&, at::TensorList, at::IntArrayRef);
  static const auto handle = find_operator<Signature>("telens::statistics");
  return handle.call(x, casts.scales, as_integers(casts.formats));
}

void accumulate_statistics(const at::Tensor& x, const StatisticsCasts& casts,
                           at::Tensor& accumulator) {
  using Signature = void(const at::Tensor&, at::TensorList, at::IntArrayRef, at::Tensor&);
  static const auto handle = find_operator<Signature>("telens::accumulate_statistics");
  handle.call(x, casts.scales, as_integers(casts.formats), accumulator);
}

at::Tensor empty_statistics(std::int64_t casts, const at::Device& device) {
  std::vector<std::int64_t> words;
  append(words, TensorSums{});
  for (std::int64_t i = 0; i < casts; ++i) append(words, CastSums{});
  return at::tensor(words, kWordType).to(device);
}

at::Tensor blockwise_dynamic_range(const at::Tensor& x, const BlockRangeOptions& blocks) {
  using Signature = at::Tensor(const at::Tensor&, std::int64_t, std::int64_t, bool);
  static const auto handle = find_operator<Signature>("telens::blockwise_dynamic_range");
  return handle.call(x, blocks.size, blocks.dims, blocks.both_orientations);
}

void accumulate_blockwise_dynamic_range(const at::Tensor& x, const BlockRangeOptions& blocks,
                                        at::Tensor& accumulator) {
  using Signature = void(const at::Tensor&, std::int64_t, std::int64_t, bool, at::Tensor&);
  static const auto handle = find_operator<Signature>("telens::accumulate_blockwise_dynamic_range");
  handle.call(x, blocks.size, blocks.dims, blocks.both_orientations, accumulator);
}

at::Tensor empty_block_ranges(const at::Device& device) {
  std::vector<std::int64_t> words;
  append(words, BlockRanges{});
  return at::tensor(words, kWordType).to(device);
}

namespace {

at::Tensor statistics_meta(const at::Tensor& x, at::TensorList scales, at::IntArrayRef formats) {
  check_statistics(x, scales, formats);
  return at::empty({statistics_words(static_cast<std::int64_t>(scales.size()))},
                   x.options().dtype(kWordType));
}

void accumulate_statistics_meta(const at::Tensor& x, at::TensorList scales, at::IntArrayRef formats,
                                at::Tensor& accumulator) {
  check_statistics(x, scales, formats);
  check_accumulator("accumulate_statistics", x, accumulator,
                    statistics_words(static_cast<std::int64_t>(scales.size())));
}

at::Tensor blockwise_dynamic_range_meta(const at::Tensor& x, std::int64_t block_size,
                                        std::int64_t dims, bool /*both_orientations*/) {
  check_blockwise_dynamic_range(x, block_size, dims);
  return at::empty({kBlockRangesWords}, x.options().dtype(kWordType));
}

void accumulate_blockwise_dynamic_range_meta(const at::Tensor& x, std::int64_t block_size,
                                             std::int64_t dims, bool /*both_orientations*/,
                                             at::Tensor& accumulator) {
  check_blockwise_dynamic_range(x, block_size, dims);
  check_accumulator("accumulate_blockwise_dynamic_range", x, accumulator, kBlockRangesWords);
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("statistics", telens::statistics_meta);
  library.impl("accumulate_statistics", telens::accumulate_statistics_meta);
  library.impl("blockwise_dynamic_range", telens::blockwise_dynamic_range_meta);
  library.impl("accumulate_blockwise_dynamic_range",
               telens::accumulate_blockwise_dynamic_range_meta);
}
