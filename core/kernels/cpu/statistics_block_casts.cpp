// `accumulate_block_cast_statistics` on the CPU: lines as they lie in memory, threads, merging.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/kernels/cpu/block_scales.h"
#include "core/kernels/cpu/dequantize_range.h"
#include "core/kernels/cpu/statistics_block_cast_range.h"
#include "core/kernels/cpu/statistics_words.h"
#include "core/ops/statistics_block_casts.h"

namespace telens::kernels {
namespace {

// Elements per part. Parts, not threads, decide in which order errors are added up.
constexpr std::int64_t kPart = 16 * kStatisticsChunk;

// A matrix and its codes, both row after row or both column after column.
struct Lines {
  at::Tensor x, codes;
  FormatId input, element;
  ScalingMode mode;
  bool transposed;

  std::int64_t count() const { return x.size(transposed ? 1 : 0); }
  std::int64_t length() const { return x.size(transposed ? 0 : 1); }
  // Of NVFP4 with an odd number of columns a row of codes has one more.
  std::int64_t code_stride() const { return codes.size(transposed ? 0 : 1); }
};

at::Tensor in_order(const at::Tensor& matrix, bool transposed) {
  return transposed ? matrix.t().contiguous().t() : matrix.contiguous();
}

CastSums read_lines(const Lines& lines, const Scales& scales, std::int64_t first,
                    std::int64_t last) {
  const std::int64_t length = lines.length();
  const auto size = static_cast<std::size_t>(length);
  const auto* const codes = lines.codes.const_data_ptr<std::uint8_t>();
  const auto* const x = static_cast<const std::byte*>(lines.x.const_data_ptr());
  const auto width = static_cast<std::int64_t>(lines.x.element_size());
  std::vector<float> of_elements(size);
  std::vector<float> decoded(size);
  CastSums sums;
  for (std::int64_t line = first; line < last; ++line) {
    if (lines.transposed) {
      scales_along_column(scales, lines.mode, line, of_elements);
    } else {
      scales_along_row(scales, lines.mode, line, of_elements);
    }
    dequantize_range_by_scales(lines.element, codes + line * lines.code_stride(), size,
                               of_elements.data(), FormatId::fp32, decoded.data());
    add_block_cast(
        {lines.input, x + line * length * width, decoded.data(), of_elements.data(), size},
        lines.element, sums);
  }
  return sums;
}

void add_extremes(const Scales& scales, CastSums& sums) {
  for (std::int64_t row = 0; row < scales.values.size(0); ++row) {
    for (std::int64_t column = 0; column < scales.values.size(1); ++column) {
      const double scale = scales.at(row, column);
      sums.scale_inv_min = smaller(sums.scale_inv_min, scale);
      sums.scale_inv_max = larger(sums.scale_inv_max, scale);
    }
  }
}

CastSums read(const Lines& lines, const Scales& scales) {
  CastSums whole;
  if (lines.x.numel() == 0) return whole;
  const std::int64_t grain = std::max<std::int64_t>(1, kPart / lines.length());
  const std::int64_t count = (lines.count() + grain - 1) / grain;
  std::vector<CastSums> parts(static_cast<std::size_t>(count));
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      parts[static_cast<std::size_t>(i)] =
          read_lines(lines, scales, i * grain, std::min(lines.count(), (i + 1) * grain));
    }
  });
  for (const CastSums& part : parts) merge(whole, part);
  add_extremes(scales, whole);
  return whole;
}

void accumulate(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scale_inv,
                const std::optional<at::Tensor>& tensor_scale, std::int64_t format,
                std::int64_t mode, at::Tensor& accumulator) {
  const ops::BlockCodes given{codes, scale_inv, tensor_scale.value_or(at::Tensor())};
  const FormatId input = ops::check_block_cast_statistics(x, given, format, mode, accumulator);
  const auto scaling = static_cast<ScalingMode>(mode);
  const at::Tensor bytes = scaling == ScalingMode::nvfp4 ? unpack(codes) : codes;
  const bool transposed = ops::is_transposed(bytes);
  const at::Tensor of_blocks = decode_scales(scale_inv, scaling);
  const Lines lines{in_order(x, transposed),
                    in_order(bytes, transposed),
                    input,
                    static_cast<FormatId>(format),
                    scaling,
                    transposed};
  merge_words(read(lines, Scales(tensor_scale ? of_blocks.mul(*tensor_scale) : of_blocks)),
              accumulator.mutable_data_ptr<std::int64_t>());
}

}  // namespace
}  // namespace telens::kernels

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("accumulate_block_cast_statistics", TORCH_FN(telens::kernels::accumulate));
}
