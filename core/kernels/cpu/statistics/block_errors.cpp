// The comparison of a matrix with its block cast on the CPU: accumulate_block_cast_statistics,
// block_cast_errors and block_copies_difference.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/quantize/block_scales.h"
#include "core/kernels/cpu/quantize/fp8_ranges.h"
#include "core/kernels/cpu/statistics/statistics_ranges.h"
#include "core/kernels/cpu/statistics/statistics_words.h"
#include "core/ops/block_errors.h"
#include "core/ops/block_quantize.h"
#include "core/ops/device.h"
#include "core/ops/statistics.h"
#include "core/ops/statistics_layout.h"

namespace telens::kernels {
namespace {

// Returns the matrix in row-major order, or in column-major order if transposed.
at::Tensor in_order(const at::Tensor& matrix, bool transposed) {
  return transposed ? matrix.t().contiguous().t() : matrix.contiguous();
}

// Buffers for decoding a line; reusable.
struct DecodedLine {
  explicit DecodedLine(std::int64_t length)
      : scales(static_cast<std::size_t>(length)), values(static_cast<std::size_t>(length)) {}

  std::vector<float> scales;  // one scale per element
  std::vector<float> values;
  std::int64_t row_of_scales = -1;  // in memory: the lines with the same scales
};

// A matrix in a block format, decoded line by line in memory order. Packed codes are unpacked to
// one per byte.
class BlockLines {
 public:
  // Lines are rows, or columns if transposed. length: valid elements of a line. A row of packed
  // codes with an odd number of columns has one more.
  BlockLines(const ops::BlockCodes& given, FormatId element, ScalingMode mode, bool transposed,
             std::int64_t length)
      : codes_(in_order(scheme(mode).is_packed() ? unpack(given.codes) : given.codes, transposed)),
        scales_(get_scales(given, mode)),
        element_(element),
        mode_(mode),
        transposed_(transposed),
        length_(length) {}

  const Scales& scales() const { return scales_; }
  std::int64_t length() const { return length_; }

  void decode(std::int64_t line, DecodedLine& out) const {
    find_scales(line, out);
    const std::int64_t code_stride = codes_.size(transposed_ ? 0 : 1);
    const auto* const codes = codes_.const_data_ptr<std::uint8_t>();
    dequantize_range_by_scales(element_, codes + line * code_stride,
                               static_cast<std::size_t>(length_), out.scales.data(), FormatId::fp32,
                               out.values.data());
  }

 private:
  void find_scales(std::int64_t line, DecodedLine& out) const {
    const std::int64_t row = line / (transposed_ ? block_length(mode_) : block_height(mode_));
    if (out.row_of_scales == row) return;
    out.row_of_scales = row;
    if (transposed_) {
      scales_along_column(scales_, mode_, line, out.scales);
    } else {
      scales_along_row(scales_, mode_, line, out.scales);
    }
  }

  static Scales get_scales(const ops::BlockCodes& given, ScalingMode mode) {
    const at::Tensor of_blocks = decode_scales(given.scale_inv, mode);
    return Scales(given.tensor_scale.defined() ? of_blocks.mul(given.tensor_scale.view({-1, 1}))
                                               : of_blocks);
  }

  at::Tensor codes_;
  Scales scales_;
  FormatId element_;
  ScalingMode mode_;
  bool transposed_;
  std::int64_t length_;
};

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

// ---- one copy, by blocks

// A matrix and its codes, both row-major or both column-major.
struct MatrixAndCodes {
  at::Tensor x;
  FormatId input, element;
  ScalingMode mode;
  bool transposed;
  BlockLines codes;

  // The first element of a line in memory.
  const std::byte* line(std::int64_t index) const {
    const auto width = static_cast<std::int64_t>(x.element_size());
    return static_cast<const std::byte*>(x.const_data_ptr()) + index * codes.length() * width;
  }
};

// BlockErrors for all blocks, row-major.
struct Result {
  BlockErrors* blocks;
  std::int64_t columns;  // in blocks

  BlockErrors& at(std::int64_t row, std::int64_t column) const {
    return blocks[row * columns + column];
  }
};

BlockCastElements get_line(const MatrixAndCodes& matrix, std::int64_t index, DecodedLine& decoded) {
  matrix.codes.decode(index, decoded);
  return {matrix.input, matrix.line(index), decoded.values.data(), decoded.scales.data(),
          static_cast<std::size_t>(matrix.codes.length())};
}

// Processes one row of blocks. The elements of a block in one row are contiguous.
void read_row_of_blocks(const MatrixAndCodes& matrix, std::int64_t row_of_blocks,
                        const Result& result) {
  const std::int64_t height = block_height(matrix.mode);
  const std::int64_t last = std::min(matrix.x.size(0), (row_of_blocks + 1) * height);
  DecodedLine decoded(matrix.codes.length());
  for (std::int64_t row = row_of_blocks * height; row < last; ++row) {
    add_block_errors(get_line(matrix, row, decoded), matrix.element,
                     static_cast<std::size_t>(block_length(matrix.mode)),
                     &result.at(row_of_blocks, 0));
  }
}

void add(const BlockErrors& part, BlockErrors& block) {
  block.elements += part.elements;
  block.nonzero |= part.nonzero;
  block.underflows += part.underflows;
  block.saturated += part.saturated;
  block.squared_error += part.squared_error;
}

// Columns of blocks that are read before their results are written: their blocks of one row, which
// are neighbors in the result, fill three cache lines.
constexpr std::int64_t kColumnsAtOnce = 8;

// Processes the columns first <= i < last of blocks, at most kColumnsAtOnce. The matrix is stored
// by columns, and a block runs down several of them.
void read_columns_of_blocks(const MatrixAndCodes& matrix, std::int64_t first, std::int64_t last,
                            const Result& result) {
  const std::int64_t length = block_length(matrix.mode);
  const std::int64_t rows = matrix.codes.length();
  DecodedLine decoded(rows);
  std::vector<ColumnErrors> errors(static_cast<std::size_t>(last - first),
                                   ColumnErrors(static_cast<std::size_t>(rows)));
  for (std::int64_t i = first * length; i < std::min(matrix.x.size(1), last * length); ++i) {
    errors[static_cast<std::size_t>(i / length - first)].add(get_line(matrix, i, decoded),
                                                             matrix.element);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = first; column < last; ++column) {
      const ColumnErrors& of_column = errors[static_cast<std::size_t>(column - first)];
      add(of_column.of(static_cast<std::size_t>(row)),
          result.at(row / block_height(matrix.mode), column));
    }
  }
}

// One thread processes all rows of a block, in order.
void read_block_errors(const MatrixAndCodes& matrix, std::int64_t rows_of_blocks,
                       const Result& result) {
  if (matrix.transposed) {
    const std::int64_t grain = kGrain / (block_length(matrix.mode) * matrix.codes.length()) + 1;
    at::parallel_for(0, result.columns, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; i += kColumnsAtOnce) {
        read_columns_of_blocks(matrix, i, std::min(end, i + kColumnsAtOnce), result);
      }
    });
    return;
  }
  const std::int64_t grain = kGrain / (block_height(matrix.mode) * matrix.codes.length()) + 1;
  at::parallel_for(0, rows_of_blocks, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) read_row_of_blocks(matrix, i, result);
  });
}

at::Tensor block_cast_errors(const at::Tensor& x, const at::Tensor& codes,
                             const at::Tensor& scale_inv,
                             const std::optional<at::Tensor>& tensor_scale, std::int64_t format,
                             std::int64_t mode) {
  const ops::BlockCodes given{codes, scale_inv, tensor_scale.value_or(at::Tensor())};
  const FormatId input = ops::check_block_cast("block_cast_errors", x, given, format, mode);
  const auto scaling = static_cast<ScalingMode>(mode);
  const auto element = static_cast<FormatId>(format);
  at::Tensor words = at::zeros({scale_inv.size(0), scale_inv.size(1), kBlockErrorsWords},
                               x.options().dtype(at::kLong));
  if (x.numel() == 0) return words;
  const bool transposed = ops::is_transposed(codes);
  const MatrixAndCodes matrix{
      in_order(x, transposed),
      input,
      element,
      scaling,
      transposed,
      BlockLines(given, element, scaling, transposed, x.size(transposed ? 0 : 1))};
  std::vector<BlockErrors> blocks(static_cast<std::size_t>(scale_inv.numel()));
  const Result result{blocks.data(), scale_inv.size(1)};
  read_block_errors(matrix, scale_inv.size(0), result);
  std::memcpy(words.mutable_data_ptr<std::int64_t>(), blocks.data(),
              blocks.size() * sizeof(BlockErrors));
  return words;
}

// ---- two copies

// undone: the second copy without its transform, or undefined if it has none; it is then decoded
// from `b`.
CopiesDifference compare_lines(const BlockLines& a, const BlockLines& b, const at::Tensor& undone,
                               std::int64_t count) {
  const std::int64_t length = a.length();
  const std::int64_t grain = std::max<std::int64_t>(1, kStatisticsPart / length);
  std::vector<CopiesDifference> parts(static_cast<std::size_t>((count + grain - 1) / grain));
  const auto read = [&](std::int64_t begin, std::int64_t end) {
    DecodedLine first(length);
    DecodedLine second(length);
    for (std::int64_t line = begin * grain; line < std::min(count, end * grain); ++line) {
      a.decode(line, first);
      if (!undone.defined()) b.decode(line, second);
      const float* const other =
          undone.defined() ? undone.const_data_ptr<float>() + line * length : second.values.data();
      add_difference(first.values.data(), other, static_cast<std::size_t>(length),
                     parts[static_cast<std::size_t>(line / grain)]);
    }
  };
  at::parallel_for(0, static_cast<std::int64_t>(parts.size()), 1, read);
  CopiesDifference whole;
  for (const CopiesDifference& part : parts) merge(whole, part);
  return whole;
}

struct CpuCopies {
  static at::Tensor compare(const ops::BlockCast& rowwise, const ops::BlockCast& columnwise,
                            std::optional<std::int64_t> hadamard_signs);
};

at::Tensor CpuCopies::compare(const ops::BlockCast& rowwise, const ops::BlockCast& columnwise,
                              std::optional<std::int64_t> hadamard_signs) {
  const auto& [first, element, mode] = rowwise;
  const ops::BlockCodes& second = columnwise.codes;
  at::Tensor result = at::zeros({kCopiesDifferenceWords}, first.codes.options().dtype(at::kLong));
  const std::int64_t rows = first.codes.size(0);
  const std::int64_t columns = second.codes.size(0);
  if (rows == 0 || columns == 0) return result;
  // Lines of both copies follow the memory order of the rowwise copy.
  const bool transposed = ops::is_transposed(first.codes);
  const std::int64_t length = transposed ? rows : columns;
  at::Tensor undone;
  if (hadamard_signs) {
    undone = in_order(ops::without_transform(columnwise, rows, *hadamard_signs), transposed);
  }
  const CopiesDifference difference = compare_lines(
      BlockLines(first, element, mode, transposed, length),
      BlockLines(second, element, mode, !transposed, length), undone, transposed ? columns : rows);
  store_words(difference, result.mutable_data_ptr<std::int64_t>());
  return result;
}

}  // namespace
}  // namespace telens::kernels

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("accumulate_block_cast_statistics",
               TORCH_FN(telens::kernels::accumulate_block_cast_statistics_cpu));
  library.impl("block_cast_errors", TORCH_FN(telens::kernels::block_cast_errors));
  library.impl("block_copies_difference",
               TORCH_FN(telens::ops::block_copies_difference_by<telens::kernels::CpuCopies>));
}
