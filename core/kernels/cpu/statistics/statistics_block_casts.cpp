// `accumulate_block_cast_statistics` on the CPU: lines in memory order, threads and merging.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/statistics/block_lines.h"
#include "core/kernels/cpu/statistics/statistics_ranges.h"
#include "core/kernels/cpu/statistics/statistics_words.h"
#include "core/ops/capture.h"
#include "core/ops/statistics_block_casts.h"

namespace telens::kernels {
namespace {

// A matrix in the memory order of its codes.
struct Lines {
  at::Tensor x;
  FormatId input, element;
  bool transposed;
  BlockLines codes;

  std::int64_t count() const { return x.size(transposed ? 1 : 0); }
  std::int64_t length() const { return codes.length(); }
};

CastSums read_lines(const Lines& lines, std::int64_t first, std::int64_t last) {
  const std::int64_t length = lines.length();
  const auto* const x = static_cast<const std::byte*>(lines.x.const_data_ptr());
  const auto width = static_cast<std::int64_t>(lines.x.element_size());
  DecodedLine decoded(length);
  CastSums sums;
  for (std::int64_t line = first; line < last; ++line) {
    lines.codes.decode(line, decoded);
    add_block_cast({lines.input, x + line * length * width, decoded.values.data(),
                    decoded.scales.data(), static_cast<std::size_t>(length)},
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

CastSums read_block_casts(const Lines& lines) {
  CastSums whole;
  if (lines.x.numel() == 0) return whole;
  const std::int64_t grain = std::max<std::int64_t>(1, kStatisticsPart / lines.length());
  const std::int64_t count = (lines.count() + grain - 1) / grain;
  std::vector<CastSums> parts(static_cast<std::size_t>(count));
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      parts[static_cast<std::size_t>(i)] =
          read_lines(lines, i * grain, std::min(lines.count(), (i + 1) * grain));
    }
  });
  for (const CastSums& part : parts) merge(whole, part);
  add_extremes(lines.codes.scales(), whole);
  return whole;
}

void accumulate_block_cast_statistics_cpu(const at::Tensor& x, const at::Tensor& codes,
                                          const at::Tensor& scale_inv,
                                          const std::optional<at::Tensor>& tensor_scale,
                                          std::int64_t format, std::int64_t mode,
                                          at::Tensor& accumulator) {
  const ops::BlockCodes given{codes, scale_inv, tensor_scale.value_or(at::Tensor())};
  const FormatId input = ops::check_block_cast_statistics(x, given, format, mode, accumulator);
  if (ops::gate_is_shut()) return;
  const bool transposed = ops::is_transposed(codes);
  const auto element = static_cast<FormatId>(format);
  const Lines lines{in_order(x, transposed), input, element, transposed,
                    BlockLines(given, element, static_cast<ScalingMode>(mode), transposed,
                               x.size(transposed ? 0 : 1))};
  merge_words(read_block_casts(lines), accumulator.mutable_data_ptr<std::int64_t>());
}

}  // namespace
}  // namespace telens::kernels

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("accumulate_block_cast_statistics",
               TORCH_FN(telens::kernels::accumulate_block_cast_statistics_cpu));
}
