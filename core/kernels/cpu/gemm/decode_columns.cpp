#include "core/kernels/cpu/quantize/fp8_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/gemm/decode_columns.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/quantize/fp8_steps-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

using kernels::CodeMatrix;
using kernels::kTile;

// Codes are read in cache lines.
constexpr std::size_t kLine = 64;
// Codes written in sequence. With 64, each write is on a different page (0.7 of the speed at 2048 x
// 1024).
constexpr std::size_t kRows = 256;
// Transposed codes, [column][row]. The block fills a third of a first-level cache.
using Block = std::uint8_t[kLine][kRows];

// to[j][i] = from[i][j] for 16 rows of 16 codes. Interleaving the halves of a list of 16 vectors
// rotates the eight bits of a code's position (row, column) by one. Four rotations swap row and
// column.
HWY_INLINE void transpose_tile(const std::uint8_t* from, std::size_t stride, std::uint8_t* to) {
  const hn::FixedTag<std::uint8_t, kTile> lanes;
  using Rows = hn::Vec<decltype(lanes)>[kTile];
  Rows rows;
  for (std::size_t i = 0; i < kTile; ++i) rows[i] = hn::LoadU(lanes, from + i * stride);
  const auto interleave_halves = [&](const Rows& in, Rows& out) HWY_ATTR {
    for (std::size_t i = 0; i < kTile / 2; ++i) {
      out[2 * i] = hn::InterleaveLower(lanes, in[i], in[i + kTile / 2]);
      out[2 * i + 1] = hn::InterleaveUpper(lanes, in[i], in[i + kTile / 2]);
    }
  };
  Rows turned;
  interleave_halves(rows, turned);
  interleave_halves(turned, rows);
  interleave_halves(rows, turned);
  interleave_halves(turned, rows);
  for (std::size_t j = 0; j < kTile; ++j) hn::StoreU(rows[j], lanes, to + j * kRows);
}

// Decodes `size` codes from a column of a block. The last vector overlaps the previous one.
template <typename Input, typename Output>
HWY_INLINE void decode_column(const std::uint8_t* codes, std::size_t size,
                              typename Output::Bits* values) {
  const BytesOfCodes16 bytes;
  const std::size_t step = hn::Lanes(bytes);
  static_assert(hn::MaxLanes(bytes) <= kLine);
  if (size < step) {
    typename Output::Bits vector[hn::MaxLanes(bytes)];
    decode_to<Input, Output>(vector, hn::LoadU(bytes, codes));
    std::copy_n(vector, size, values);
    return;
  }
  for (std::size_t i = 0; i < size; i += step) {
    const std::size_t from = std::min(i, size - step);
    decode_to<Input, Output>(values + from, hn::LoadU(bytes, codes + from));
  }
}

template <typename Input, typename Output>
void decode_blocks(const CodeMatrix& codes, std::size_t begin, std::size_t end,
                   typename Output::Bits* values) {
  HWY_ALIGN Block block = {};
  for (std::size_t column = begin; column < end; column += kLine) {
    const std::size_t columns = std::min(kLine, end - column);
    for (std::size_t row = 0; row < codes.rows; row += kRows) {
      const std::size_t rows = std::min(kRows, codes.rows - row);
      for (std::size_t i = 0; i < rows; i += kTile) {
        for (std::size_t j = 0; j < columns; j += kTile) {
          transpose_tile(codes.data + (row + i) * codes.columns + column + j, codes.columns,
                         &block[j][i]);
        }
      }
      auto* const first = values + (column - begin) * codes.rows + row;
      for (std::size_t j = 0; j < columns; ++j) {
        decode_column<Input, Output>(block[j], rows, first + j * codes.rows);
      }
    }
  }
}

}  // namespace

void decode_columns(FormatId input, const CodeMatrix& codes, std::size_t begin, std::size_t end,
                    FormatId output, void* values) {
  dispatch_fp8_format(input, "decode_columns", [&]<typename Input>() {
    if (output == FormatId::bf16) {
      decode_blocks<Input, BF16>(codes, begin, end, static_cast<BF16::Bits*>(values));
    } else {
      decode_blocks<Input, FP32>(codes, begin, end, static_cast<FP32::Bits*>(values));
    }
  });
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {
HWY_EXPORT(decode_columns);

void kernels::decode_columns(FormatId input, const CodeMatrix& codes, std::size_t begin,
                             std::size_t end, FormatId output, void* values) {
  HWY_DYNAMIC_DISPATCH(telens::decode_columns)(input, codes, begin, end, output, values);
}

}  // namespace telens
#endif
