// `block_cast_errors` and `block_copies_difference` on the CPU.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "core/kernels/cpu/block_lines.h"
#include "core/kernels/cpu/statistics_block_cast_range.h"
#include "core/kernels/cpu/statistics_words.h"
#include "core/ops/block_errors.h"
#include "core/ops/block_errors_layout.h"

namespace telens::kernels {
namespace {

// ---- one copy, block by block

// A matrix and its codes, both row after row or both column after column.
struct Matrix {
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

// BlockErrors of all blocks, row after row.
struct Result {
  BlockErrors* blocks;
  std::int64_t columns;  // of blocks

  BlockErrors& at(std::int64_t row, std::int64_t column) const {
    return blocks[row * columns + column];
  }
};

// Of raw elements; a NaN is not zero.
template <typename Code>
bool any_nonzero(const std::byte* elements, std::int64_t size) {
  constexpr auto kMagnitude = static_cast<Code>(static_cast<Code>(~Code{0}) >> 1);
  Code bits = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    Code code;
    std::memcpy(&code, elements + static_cast<std::size_t>(i) * sizeof(Code), sizeof(Code));
    bits = static_cast<Code>(bits | (code & kMagnitude));
  }
  return bits != 0;
}

void add(const CastSums& sums, bool nonzero, BlockErrors& block) {
  block.elements += static_cast<std::int32_t>(sums.numel);
  block.nonzero |= nonzero ? 1 : 0;
  block.underflows += static_cast<std::int32_t>(sums.underflows);
  block.saturated += static_cast<std::int32_t>(sums.saturated);
  block.squared_error += sums.squared_error;
}

// Rows of one row of blocks: a block's elements in a row are neighbours.
template <typename Code>
void read_row_of_blocks(const Matrix& matrix, std::int64_t row_of_blocks, const Result& result) {
  const std::int64_t columns = matrix.codes.length();
  const std::int64_t length = block_length(matrix.mode);
  const std::int64_t height = block_height(matrix.mode);
  const std::int64_t last = std::min(matrix.x.size(0), (row_of_blocks + 1) * height);
  std::vector<CastSums> sums(static_cast<std::size_t>(result.columns));
  DecodedLine decoded(columns);
  for (std::int64_t row = row_of_blocks * height; row < last; ++row) {
    const std::byte* const x = matrix.line(row);
    matrix.codes.decode(row, decoded);
    std::ranges::fill(sums, CastSums{});
    add_each_block_cast({matrix.input, x, decoded.values.data(), decoded.scales.data(),
                         static_cast<std::size_t>(columns)},
                        matrix.element, static_cast<std::size_t>(length), sums.data());
    for (std::int64_t i = 0; i < result.columns; ++i) {
      const std::int64_t begin = i * length;
      const bool nonzero = any_nonzero<Code>(x + static_cast<std::size_t>(begin) * sizeof(Code),
                                             std::min(length, columns - begin));
      add(sums[static_cast<std::size_t>(i)], nonzero, result.at(row_of_blocks, i));
    }
  }
}

// Rows that are brought together at once: with the longest blocks their elements fit into the
// first-level cache.
constexpr std::int64_t kTileRows = 32;

// out = [rows, size], whose column i is what line(i) points to.
template <typename T, typename Line>
void gather(std::int64_t rows, std::int64_t size, const Line& line, std::vector<T>& out) {
  for (std::int64_t i = 0; i < size; ++i) {
    const T* const from = line(i);
    for (std::int64_t row = 0; row < rows; ++row) {
      out[static_cast<std::size_t>(row * size + i)] = from[row];
    }
  }
}

// The columns of one column of blocks, which are lines of memory: some rows of them are brought
// into the order of blocks, in the cache.
template <typename Code>
void read_column_of_blocks(const Matrix& matrix, std::int64_t column_of_blocks,
                           const Result& result) {
  const std::int64_t length = block_length(matrix.mode);
  const std::int64_t first = column_of_blocks * length;
  const std::int64_t size = std::min(length, matrix.x.size(1) - first);
  const std::int64_t all_rows = matrix.codes.length();
  std::vector<DecodedLine> decoded(static_cast<std::size_t>(size), DecodedLine(all_rows));
  for (std::int64_t i = 0; i < size; ++i) {
    matrix.codes.decode(first + i, decoded[static_cast<std::size_t>(i)]);
  }
  const auto tile = static_cast<std::size_t>(kTileRows * size);
  std::vector<Code> x(tile);
  std::vector<float> values(tile), scales(tile);
  std::vector<CastSums> sums(kTileRows);
  for (std::int64_t begin = 0; begin < all_rows; begin += kTileRows) {
    const std::int64_t rows = std::min(kTileRows, all_rows - begin);
    const auto line = [&](std::int64_t i) -> DecodedLine& {
      return decoded[static_cast<std::size_t>(i)];
    };
    gather(
        rows, size,
        [&](auto i) { return reinterpret_cast<const Code*>(matrix.line(first + i)) + begin; }, x);
    gather(
        rows, size, [&](auto i) { return line(i).values.data() + begin; }, values);
    gather(
        rows, size, [&](auto i) { return line(i).scales.data() + begin; }, scales);
    std::ranges::fill(sums, CastSums{});
    add_each_block_cast({matrix.input, x.data(), values.data(), scales.data(),
                         static_cast<std::size_t>(rows * size)},
                        matrix.element, static_cast<std::size_t>(size), sums.data());
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto* const elements = reinterpret_cast<const std::byte*>(x.data() + row * size);
      add(sums[static_cast<std::size_t>(row)], any_nonzero<Code>(elements, size),
          result.at((begin + row) / block_height(matrix.mode), column_of_blocks));
    }
  }
}

// Every block belongs to one thread, and its rows come in their order.
template <typename Code>
void read_blocks(const Matrix& matrix, std::int64_t rows_of_blocks, const Result& result) {
  if (matrix.transposed) {
    const std::int64_t grain = kGrain / (block_length(matrix.mode) * matrix.codes.length()) + 1;
    at::parallel_for(0, result.columns, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) read_column_of_blocks<Code>(matrix, i, result);
    });
    return;
  }
  const std::int64_t grain = kGrain / (block_height(matrix.mode) * matrix.codes.length()) + 1;
  at::parallel_for(0, rows_of_blocks, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) read_row_of_blocks<Code>(matrix, i, result);
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
  const Matrix matrix{in_order(x, transposed),
                      input,
                      element,
                      scaling,
                      transposed,
                      BlockLines(given, element, scaling, transposed, x.size(transposed ? 0 : 1))};
  std::vector<BlockErrors> blocks(static_cast<std::size_t>(scale_inv.numel()));
  const Result result{blocks.data(), scale_inv.size(1)};
  if (x.element_size() == sizeof(float)) {
    read_blocks<std::uint32_t>(matrix, scale_inv.size(0), result);
  } else {
    read_blocks<std::uint16_t>(matrix, scale_inv.size(0), result);
  }
  std::memcpy(words.mutable_data_ptr<std::int64_t>(), blocks.data(),
              blocks.size() * sizeof(BlockErrors));
  return words;
}

// ---- two copies

// Lines per part: parts, not threads, decide in which order differences are added up.
constexpr std::int64_t kPart = 16 * kStatisticsChunk;

// Quotients of a piece in FP32, without branches: so the compiler finds vectors.
CopiesDifference compare(const float* a, const float* b, std::int64_t size) {
  constexpr std::int64_t kPiece = 256;
  std::array<float, kPiece> relative;
  CopiesDifference sums;
  sums.elements = size;
  for (std::int64_t begin = 0; begin < size; begin += kPiece) {
    const std::int64_t piece = std::min(kPiece, size - begin);
    std::int32_t different = 0;
    for (std::int64_t i = 0; i < piece; ++i) {
      const float x = a[begin + i];
      const float y = b[begin + i];
      const bool differ = (x != y) & !((x != x) & (y != y));
      const float largest = std::fabs(x) > std::fabs(y) ? std::fabs(x) : std::fabs(y);
      const float quotient = std::fabs(x - y) / largest;
      relative[static_cast<std::size_t>(i)] = differ ? quotient : 0;
      different += differ;
    }
    sums.different += different;
    for (std::int64_t i = 0; i < piece; ++i) sums.relative += relative[static_cast<std::size_t>(i)];
  }
  return sums;
}

// The columnwise copy with its transform undone: a matrix as the rowwise one, in the same order of
// memory.
at::Tensor without_transform(const ops::BlockCodes& columnwise, std::int64_t format,
                             std::int64_t mode, std::int64_t rows, std::uint16_t signs,
                             bool transposed) {
  const at::Tensor decoded = ops::dequantize_blocks(columnwise, static_cast<FormatId>(format),
                                                    static_cast<ScalingMode>(mode), at::kFloat);
  return in_order(ops::hadamard_transform(decoded.narrow(1, 0, rows).t(), signs, /*inverse=*/true),
                  transposed);
}

// undone: the second copy where it had a transform; else undefined, and it is decoded from `b`.
CopiesDifference compare_lines(const BlockLines& a, const BlockLines& b, const at::Tensor& undone,
                               std::int64_t count) {
  const std::int64_t length = a.length();
  const std::int64_t grain = std::max<std::int64_t>(1, kPart / length);
  std::vector<CopiesDifference> parts(static_cast<std::size_t>((count + grain - 1) / grain));
  const auto read = [&](std::int64_t begin, std::int64_t end) {
    DecodedLine first(length);
    DecodedLine second(length);
    for (std::int64_t line = begin * grain; line < std::min(count, end * grain); ++line) {
      a.decode(line, first);
      if (!undone.defined()) b.decode(line, second);
      const float* const other =
          undone.defined() ? undone.const_data_ptr<float>() + line * length : second.values.data();
      merge(parts[static_cast<std::size_t>(line / grain)],
            compare(first.values.data(), other, length));
    }
  };
  at::parallel_for(0, static_cast<std::int64_t>(parts.size()), 1, read);
  CopiesDifference whole;
  for (const CopiesDifference& part : parts) merge(whole, part);
  return whole;
}

at::Tensor block_copies_difference(const at::Tensor& codes, const at::Tensor& scale_inv,
                                   const std::optional<at::Tensor>& tensor_scale,
                                   const at::Tensor& column_codes,
                                   const at::Tensor& column_scale_inv,
                                   const std::optional<at::Tensor>& column_tensor_scale,
                                   std::int64_t format, std::int64_t mode,
                                   std::optional<std::int64_t> hadamard_signs) {
  const ops::BlockCodes rowwise{codes, scale_inv, tensor_scale.value_or(at::Tensor())};
  const ops::BlockCodes columnwise{column_codes, column_scale_inv,
                                   column_tensor_scale.value_or(at::Tensor())};
  ops::check_block_copies(rowwise, columnwise, format, mode);
  at::Tensor result = at::zeros({kCopiesDifferenceWords}, codes.options().dtype(at::kLong));
  const std::int64_t rows = codes.size(0);
  const std::int64_t columns = column_codes.size(0);
  if (rows == 0 || columns == 0) return result;
  // Lines of both copies are those of the rowwise one's memory.
  const bool transposed = ops::is_transposed(codes);
  const std::int64_t length = transposed ? rows : columns;
  const auto element = static_cast<FormatId>(format);
  const auto scaling = static_cast<ScalingMode>(mode);
  at::Tensor undone;
  if (hadamard_signs) {
    undone = without_transform(columnwise, format, mode, rows,
                               static_cast<std::uint16_t>(*hadamard_signs), transposed);
  }
  const CopiesDifference difference =
      compare_lines(BlockLines(rowwise, element, scaling, transposed, length),
                    BlockLines(columnwise, element, scaling, !transposed, length), undone,
                    transposed ? columns : rows);
  store_words(difference, result.mutable_data_ptr<std::int64_t>());
  return result;
}

}  // namespace
}  // namespace telens::kernels

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("block_cast_errors", TORCH_FN(telens::kernels::block_cast_errors));
  library.impl("block_copies_difference", TORCH_FN(telens::kernels::block_copies_difference));
}
