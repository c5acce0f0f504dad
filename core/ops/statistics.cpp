#include "core/ops/statistics.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <vector>

#include "core/ops/block_quantize.h"
#include "core/ops/checks.h"
#include "core/ops/device.h"
#include "core/ops/dispatcher.h"
#include "core/ops/statistics_layout.h"
#include "core/ops/tensor_utils.h"

namespace telens::ops {
namespace {

constexpr auto kWordType = at::kLong;

// Returns plain data of 8-byte fields (core/ops/statistics_layout.h) as words.
template <typename Sums>
std::vector<std::int64_t> get_words(const Sums& sums) {
  const auto words =
      std::bit_cast<std::array<std::int64_t, sizeof(Sums) / sizeof(std::int64_t)>>(sums);
  return {words.begin(), words.end()};
}

std::vector<std::int64_t> as_integers(const std::vector<FormatId>& formats) {
  std::vector<std::int64_t> integers(formats.size());
  std::transform(formats.begin(), formats.end(), integers.begin(),
                 [](FormatId format) { return static_cast<std::int64_t>(format); });
  return integers;
}

std::vector<std::int64_t> words_of_nothing(std::int64_t casts) {
  std::vector<std::int64_t> words = get_words(TensorSums{});
  const std::vector<std::int64_t> of_cast = get_words(CastSums{});
  for (std::int64_t i = 0; i < casts; ++i)
    words.insert(words.end(), of_cast.begin(), of_cast.end());
  return words;
}

// Merges the central moments of x's finite elements into TensorSums::moments of an accumulator.
void accumulate_central_moments(const at::Tensor& x, at::Tensor& accumulator) {
  using Signature = void(const at::Tensor&, at::Tensor&);
  static const auto handle = find_operator<Signature>("telens::accumulate_central_moments");
  handle.call(x, accumulator);
}

}  // namespace

void check_statistics(const at::Tensor& x, at::TensorList scales, at::IntArrayRef formats) {
  check_high_precision("statistics", "x", x.scalar_type());
  if (scales.size() != formats.size()) {
    raise<UsageError>("statistics: {} scales and {} formats; expected one scale per format",
                      scales.size(), formats.size());
  }
  for (std::size_t i = 0; i < scales.size(); ++i) {
    check_one_float("statistics", fmt::format("scale {}", i), scales[i], x);
    check_fp8_format("statistics", formats[i]);
  }
}

void check_blockwise_dynamic_range(const at::Tensor& x, std::int64_t block_size,
                                   std::int64_t dims) {
  check_high_precision("blockwise_dynamic_range", "x", x.scalar_type());
  if (block_size < 1) {
    raise<UsageError>("blockwise_dynamic_range: block_size is {}; expected at least 1", block_size);
  }
  if (dims != 1 && dims != 2) {
    raise<UsageError>("blockwise_dynamic_range: dims is {}; expected 1 or 2", dims);
  }
}

void check_central_moments(const at::Tensor& x, const at::Tensor& accumulator) {
  check_high_precision("accumulate_central_moments", "x", x.scalar_type());
  const bool holds_casts = accumulator.numel() > kTensorSumsWords &&
                           (accumulator.numel() - kTensorSumsWords) % kCastSumsWords == 0;
  check_accumulator("accumulate_central_moments", x, accumulator,
                    holds_casts ? accumulator.numel() : kTensorSumsWords);
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
  at::Tensor sums = handle.call(x, casts.scales, as_integers(casts.formats));
  if (casts.moments) accumulate_central_moments(x, sums);
  return sums;
}

void accumulate_statistics(const at::Tensor& x, const StatisticsCasts& casts,
                           at::Tensor& accumulator) {
  using Signature = void(const at::Tensor&, at::TensorList, at::IntArrayRef, at::Tensor&);
  static const auto handle = find_operator<Signature>("telens::accumulate_statistics");
  handle.call(x, casts.scales, as_integers(casts.formats), accumulator);
  if (casts.moments) accumulate_central_moments(x, accumulator);
}

at::Tensor empty_statistics(std::int64_t casts, const at::Device& device) {
  return constants_on(device, words_of_nothing(casts));
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
  return constants_on(device, get_words(BlockRanges{}));
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

void accumulate_central_moments_meta(const at::Tensor& x, at::Tensor& accumulator) {
  check_central_moments(x, accumulator);
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

constexpr const char* kBlockCasts = "accumulate_block_cast_statistics";

void block_cast_statistics_meta(const at::Tensor& x, const at::Tensor& codes,
                                const at::Tensor& scale_inv,
                                const std::optional<at::Tensor>& tensor_scale, std::int64_t format,
                                std::int64_t mode, at::Tensor& accumulator) {
  check_block_cast_statistics(x, {codes, scale_inv, tensor_scale.value_or(at::Tensor())}, format,
                              mode, accumulator);
}

}  // namespace

FormatId check_block_cast(const char* operation, const at::Tensor& x, const BlockCodes& codes,
                          std::int64_t format, std::int64_t mode) {
  const FormatId input = check_matrix(operation, x);
  const BlockCodesFormats formats = check_block_codes(operation, codes, format, mode);
  const std::int64_t columns =
      rounded_up_quotient(x.size(1), scheme(formats.mode).codes_per_byte());
  if (codes.codes.size(0) != x.size(0) || codes.codes.size(1) != columns ||
      codes.codes.device() != x.device()) {
    raise<ShapeError>(
        "{}: codes have shape {} on {} for x of shape {} on {}; expected [{}, {}] there: the "
        "codes' own matrix, transposed for a columnwise copy",
        operation, c10::str(codes.codes.sizes()), codes.codes.device().str(), c10::str(x.sizes()),
        x.device().str(), x.size(0), columns);
  }
  return input;
}

FormatId check_block_cast_statistics(const at::Tensor& x, const BlockCodes& codes,
                                     std::int64_t format, std::int64_t mode,
                                     const at::Tensor& accumulator) {
  const FormatId input = check_block_cast(kBlockCasts, x, codes, format, mode);
  check_accumulator(kBlockCasts, x, accumulator, kCastSumsWords);
  return input;
}

void accumulate_block_cast_statistics(const at::Tensor& x, const BlockCast& cast,
                                      at::Tensor& accumulator) {
  static const auto op = find_operator<decltype(block_cast_statistics_meta)>(
      "telens::accumulate_block_cast_statistics");
  const auto& [codes, scale_inv, tensor_scale] = cast.codes;
  op.call(x, codes, scale_inv, if_defined(tensor_scale), static_cast<std::int64_t>(cast.format),
          static_cast<std::int64_t>(cast.mode), accumulator);
}

at::Tensor empty_block_casts(const at::Device& device) {
  return constants_on(device, get_words(CastSums{}));
}

namespace {

constexpr const char* kWhatIf = "accumulate_what_if_statistics";

void what_if_statistics_meta(const at::Tensor& x, at::IntArrayRef formats, at::IntArrayRef modes,
                             at::IntArrayRef squares, at::IntArrayRef columnwise,
                             at::TensorList accumulators) {
  check_what_if_statistics(x, {formats, modes, squares, columnwise}, accumulators);
}

WhatIfCast check_cast(const at::Tensor& x, std::int64_t format, std::int64_t mode) {
  const auto scaling = check_block_mode(kWhatIf, mode);
  check_kernels(kWhatIf, scaling, x);
  return {check_element_format(kWhatIf, format, scaling), scaling};
}

}  // namespace

std::vector<WhatIfCast> check_what_if_statistics(const at::Tensor& x, const WhatIfArguments& casts,
                                                 at::TensorList accumulators) {
  check_matrix(kWhatIf, x);
  const std::size_t count = accumulators.size();
  if (casts.formats.size() != count || casts.modes.size() != count ||
      casts.squares.size() != count || casts.columnwise.size() != count) {
    raise<UsageError>(
        "{}: {} formats, {} modes, {} squares, {} columnwise and {} accumulators; expected one of "
        "each a cast",
        kWhatIf, casts.formats.size(), casts.modes.size(), casts.squares.size(),
        casts.columnwise.size(), count);
  }
  std::vector<WhatIfCast> checked;
  for (std::size_t i = 0; i < count; ++i) {
    WhatIfCast cast = check_cast(x, casts.formats[i], casts.modes[i]);
    cast.squares = casts.squares[i] != 0 || cast.mode == ScalingMode::block_2d;
    cast.columnwise = casts.columnwise[i] != 0;
    check_accumulator(kWhatIf, x, accumulators[i], kCastSumsWords);
    checked.push_back(cast);
  }
  return checked;
}

void accumulate_what_if_statistics(const at::Tensor& x, std::span<const WhatIfCast> casts,
                                   at::TensorList accumulators) {
  static const auto op =
      find_operator<decltype(what_if_statistics_meta)>("telens::accumulate_what_if_statistics");
  std::vector<std::int64_t> formats, modes, squares, columnwise;
  for (const WhatIfCast& cast : casts) {
    formats.push_back(static_cast<std::int64_t>(cast.format));
    modes.push_back(static_cast<std::int64_t>(cast.mode));
    squares.push_back(cast.squares ? 1 : 0);
    columnwise.push_back(cast.columnwise ? 1 : 0);
  }
  op.call(x, formats, modes, squares, columnwise, accumulators);
}

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("statistics", telens::ops::statistics_meta);
  library.impl("accumulate_statistics", telens::ops::accumulate_statistics_meta);
  library.impl("accumulate_central_moments", telens::ops::accumulate_central_moments_meta);
  library.impl("blockwise_dynamic_range", telens::ops::blockwise_dynamic_range_meta);
  library.impl("accumulate_blockwise_dynamic_range",
               telens::ops::accumulate_blockwise_dynamic_range_meta);
  library.impl("accumulate_block_cast_statistics",
               TORCH_FN(telens::ops::block_cast_statistics_meta));
  library.impl("accumulate_what_if_statistics", TORCH_FN(telens::ops::what_if_statistics_meta));
}
