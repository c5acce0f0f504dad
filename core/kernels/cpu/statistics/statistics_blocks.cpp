#include "core/kernels/cpu/statistics/statistics_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/statistics/statistics_blocks.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/formats/convert.h"
#include "core/formats/dispatch.h"
#include "core/kernels/cpu/statistics/statistics_codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

using kernels::BlockKinds;
using kernels::MatrixOfCodes;

// The largest magnitude, and the smallest minus one, as codes. Zeros are neutral to both (minus one
// they wrap around to the largest code), so they pad incomplete vectors.
template <typename Format>
struct MagnitudeRange {
  using Lanes = Unsigneds<Format>;

  hn::Vec<Lanes> largest;
  hn::Vec<Lanes> smallest_less_one;

  // Not by member initializers: the implicit constructor is not compiled for the SIMD target.
  HWY_INLINE MagnitudeRange()
      : largest(hn::Zero(Lanes())), smallest_less_one(hn::Not(hn::Zero(Lanes()))) {}

  HWY_INLINE void add(hn::Vec<Lanes> codes) {
    const Lanes lanes;
    const auto magnitude = hn::And(codes, hn::Set(lanes, Format::kMagnitudeMask));
    largest = hn::Max(largest, magnitude);
    smallest_less_one = hn::Min(smallest_less_one, hn::Sub(magnitude, hn::Set(lanes, 1)));
  }
};

// Loads up to a vector of codes, padded with zeros.
template <typename Format>
HWY_INLINE hn::Vec<Unsigneds<Format>> load_some(const typename Format::Bits* codes,
                                                std::int64_t count) {
  const Unsigneds<Format> lanes;
  if (count >= static_cast<std::int64_t>(hn::Lanes(lanes))) return hn::LoadU(lanes, codes);
  typename Format::Bits some[hn::MaxLanes(lanes)] = {};
  std::memcpy(some, codes, static_cast<std::size_t>(count) * sizeof(some[0]));
  return hn::LoadU(lanes, some);
}

template <typename Format>
void add_block(std::uint32_t largest, std::uint32_t smallest_less_one, BlockRanges& ranges) {
  ++ranges.blocks;
  if (largest == 0) return;  // the ratio of zeros is 1, the initial value of max_ratio
  const std::uint32_t smallest = smallest_less_one + 1;
  if (largest > Format::kTopExponentCode || smallest == Format::kTopExponentCode) {
    ++ranges.nan_blocks;
    return;
  }
  const double ratio =
      static_cast<double>(decode<Format>(static_cast<typename Format::Bits>(largest))) /
      decode<Format>(static_cast<typename Format::Bits>(smallest));
  ranges.max_ratio = std::max(ranges.max_ratio, ratio);
}

// Adds the block [rows, columns] at `codes` of a matrix with the given row stride.
template <typename Format>
HWY_NOINLINE void add_tile(const typename Format::Bits* codes, std::int64_t rows,
                           std::int64_t columns, std::int64_t stride, BlockRanges& ranges) {
  using Lanes = Unsigneds<Format>;
  const auto step = static_cast<std::int64_t>(hn::Lanes(Lanes()));
  MagnitudeRange<Format> range;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; column += step) {
      range.add(load_some<Format>(codes + row * stride + column, columns - column));
    }
  }
  add_block<Format>(largest_lane<Lanes>(range.largest),
                    smallest_lane<Lanes>(range.smallest_less_one), ranges);
}

// Adds the blocks [rows, 1] of up to a vector of columns.
template <typename Format>
HWY_NOINLINE void add_columns(const typename Format::Bits* codes, std::int64_t rows,
                              std::int64_t columns, std::int64_t stride, BlockRanges& ranges) {
  using Lanes = Unsigneds<Format>;
  const Lanes lanes;
  MagnitudeRange<Format> range;
  for (std::int64_t row = 0; row < rows; ++row) {
    range.add(load_some<Format>(codes + row * stride, columns));
  }
  typename Format::Bits largest[hn::MaxLanes(lanes)];
  typename Format::Bits smallest_less_one[hn::MaxLanes(lanes)];
  hn::StoreU(range.largest, lanes, largest);
  hn::StoreU(range.smallest_less_one, lanes, smallest_less_one);
  for (std::int64_t i = 0; i < columns; ++i) {
    add_block<Format>(largest[i], smallest_less_one[i], ranges);
  }
}

// Adds a strip: one row of blocks.
template <typename Format>
void add_strip(const typename Format::Bits* codes, std::int64_t rows, std::int64_t columns,
               const BlockKinds& kinds, BlockRanges& ranges) {
  const auto width = [&](std::int64_t column, std::int64_t most) {
    return std::min(most, columns - column);
  };
  if (kinds.of_rows) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; column += kinds.size) {
        add_tile<Format>(codes + row * columns + column, 1, width(column, kinds.size), columns,
                         ranges);
      }
    }
  }
  if (kinds.of_columns) {
    const auto step = static_cast<std::int64_t>(hn::Lanes(Unsigneds<Format>()));
    for (std::int64_t column = 0; column < columns; column += step) {
      add_columns<Format>(codes + column, rows, width(column, step), columns, ranges);
    }
  }
  if (kinds.squares) {
    for (std::int64_t column = 0; column < columns; column += kinds.size) {
      add_tile<Format>(codes + column, rows, width(column, kinds.size), columns, ranges);
    }
  }
}

}  // namespace

void add_block_ranges(const MatrixOfCodes& matrix, const BlockKinds& kinds, std::int64_t first,
                      std::int64_t last, BlockRanges& ranges) {
  dispatch_high_precision_format(matrix.input, "blockwise_dynamic_range", [&]<typename Format>() {
    const auto* codes = static_cast<const typename Format::Bits*>(matrix.data);
    for (std::int64_t row = first; row < last; row += kinds.size) {
      add_strip<Format>(codes + row * matrix.columns, std::min(kinds.size, last - row),
                        matrix.columns, kinds, ranges);
    }
  });
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {
HWY_EXPORT(add_block_ranges);

namespace kernels {

void add_block_ranges(const MatrixOfCodes& matrix, const BlockKinds& kinds, std::int64_t first,
                      std::int64_t last, BlockRanges& ranges) {
  HWY_DYNAMIC_DISPATCH(telens::add_block_ranges)(matrix, kinds, first, last, ranges);
}

}  // namespace kernels
}  // namespace telens
#endif
