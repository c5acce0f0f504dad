// `accumulate_what_if_statistics` on the CPU: a row is read once for all casts while it is in the
// cache. No code is written.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/quantize/block_tiles.h"
#include "core/kernels/cpu/statistics/statistics_ranges.h"
#include "core/kernels/cpu/statistics/statistics_words.h"
#include "core/ops/device.h"
#include "core/ops/statistics.h"

namespace telens::kernels {
namespace {

using ops::WhatIfCast;

// Scales from block maxima, many at a time: the scales of the quantizers of
// core/ops/block_quantize.h with default options.

// Scales of consecutive blocks; reusable for many lines.
struct BlockScales {
  std::vector<float> factors;  // multiply the elements before encoding
  std::vector<float> scales;   // after encoding: scale_inv
  std::vector<std::uint8_t> codes;

  void resize(std::size_t size) {
    factors.resize(size);
    scales.resize(size);
    codes.resize(size);
  }
};

// E4M3 scales under a per-tensor scale have 127 values and NaN: a table of them.
class TwoLevelScales {
 public:
  static constexpr NanInMaximum nan() { return TwoLevelScaling::kNan; }

  // amax: the largest number of the tensor.
  explicit TwoLevelScales(float amax) : scaling_(TwoLevelScaling::of(amax)) {
    for (std::size_t code = 0; code < kCodes; ++code) {
      const auto of_block = static_cast<std::uint8_t>(code);
      scales_[code] = decode<E4M3>(of_block) * scaling_.tensor_scale;
      factors_[code] = scaling_.get_factor(of_block);
    }
  }

  void of(const float* maxima, std::size_t size, BlockScales& out) const {
    quantize_range(FormatId::fp32, maxima, size, scaling_.block_factor(), FormatId::e4m3,
                   out.codes.data());
    for (std::size_t i = 0; i < size; ++i) {
      out.factors[i] = factors_[out.codes[i]];
      out.scales[i] = scales_[out.codes[i]];
    }
  }

 private:
  static constexpr std::size_t kCodes = E4M3::kNanCode + 1;

  TwoLevelScaling scaling_;
  std::array<float, kCodes> factors_;
  std::array<float, kCodes> scales_;
};

class E8m0Scales {
 public:
  explicit E8m0Scales(FormatId element) : element_(element), nan_(nan_in_e8m0_block(element)) {}

  NanInMaximum nan() const { return nan_; }

  void of(const float* maxima, std::size_t size, BlockScales& out) const {
    for (std::size_t i = 0; i < size; ++i) {
      const auto [code, factor] = get_e8m0_scale(element_, maxima[i], ScaleRounding::up);
      out.factors[i] = factor;
      out.scales[i] = decode<E8M0>(code);
    }
  }

 private:
  FormatId element_;
  NanInMaximum nan_;
};

class Fp8BlockScales {
 public:
  static constexpr NanInMaximum nan() { return Fp8BlockScaling::kNan; }

  Fp8BlockScales(FormatId element, FormatId input)
      : scaling_(Fp8BlockScaling::of(element, input, /*power_of_2_scales=*/true,
                                     /*amax_epsilon=*/0.0F)) {}

  void of(const float* maxima, std::size_t size, BlockScales& out) const {
    for (std::size_t i = 0; i < size; ++i) {
      const auto [scale_inv, factor] = scaling_.get_scale(maxima[i]);
      out.factors[i] = factor;
      out.scales[i] = scale_inv;
    }
  }

 private:
  Fp8BlockScaling scaling_;
};

using WhatIfScales = std::variant<E8m0Scales, Fp8BlockScales, TwoLevelScales>;

// The scales of a cast from `input` to `element`. amax: the tensor's largest number, which packed
// FP4 needs.
WhatIfScales what_if_scales(ScalingMode mode, FormatId element, FormatId input, float amax) {
  switch (scheme(mode).scale_format) {
    case FormatId::e8m0:
      return E8m0Scales(element);
    case FormatId::e4m3:
      return TwoLevelScales(amax);
    default:
      return Fp8BlockScales(element, input);
  }
}

// A thread's state for a cast: the scales of its current row of blocks.
struct RowState {
  std::int64_t of_blocks = -1;
  std::vector<float> maxima;
  BlockScales blocks;
};

// One cast of a matrix.
class WhatIf {
 public:
  WhatIf(const ElementMatrix& x, const WhatIfCast& cast, float amax)
      : x_(x), cast_(cast), scales_(what_if_scales(cast.mode, cast.format, x.format, amax)) {
    if (!is_down_columns()) return;
    maxima_.resize(static_cast<std::size_t>(rounded_up_quotient(x.rows, block()) * width()));
  }

  // Returns true if a block spans several rows. All of these are then read before the first is
  // cast.
  bool is_down_columns() const { return cast_.columnwise || cast_.squares; }

  std::int64_t block() const { return block_length(cast_.mode); }

  // Computes the maxima of the blocks that begin in the rows first <= row < last.
  void read_maxima(std::int64_t first, std::int64_t last) {
    std::vector<float> of_columns(static_cast<std::size_t>(x_.columns));
    for (std::int64_t row = first; row < last; row += block()) {
      std::ranges::fill(of_columns, 0.0F);
      for (std::int64_t i = row; i < std::min(x_.rows, row + block()); ++i) {
        update_column_maxima(x_.format, x_.at(i, 0), of_columns.size(), nan(), of_columns.data());
      }
      float* const to = maxima_.data() + row / block() * width();
      if (cast_.squares) {
        block_maxima(FormatId::fp32, of_columns.data(), of_columns.size(),
                     static_cast<std::size_t>(block()), nan(), to);
      } else {
        std::ranges::copy(of_columns, to);
      }
    }
  }

  RowState row_for_thread() const {
    RowState row;
    row.maxima.resize(static_cast<std::size_t>(is_down_columns() ? 0 : width()));
    row.blocks.resize(static_cast<std::size_t>(width()));
    return row;
  }

  void add(std::int64_t row, RowState& own, CastSums& sums) const {
    find_scales(row, own, sums);
    add_what_if_cast(
        {x_.format, x_.at(row, 0), static_cast<std::size_t>(x_.columns), own.blocks.factors.data(),
         own.blocks.scales.data(), static_cast<std::size_t>(has_scale_per_column() ? 1 : block())},
        cast_.format, sums);
  }

 private:
  bool has_scale_per_column() const { return cast_.columnwise && !cast_.squares; }
  // Number of blocks next to each other.
  std::int64_t width() const {
    return has_scale_per_column() ? x_.columns : rounded_up_quotient(x_.columns, block());
  }
  NanInMaximum nan() const {
    return std::visit([](const auto& scales) { return scales.nan(); }, scales_);
  }

  void find_scales(std::int64_t row, RowState& own, CastSums& sums) const {
    const float* maxima = own.maxima.data();
    if (is_down_columns()) {
      if (own.of_blocks == row / block()) return;
      own.of_blocks = row / block();
      maxima = maxima_.data() + own.of_blocks * width();
    } else {
      block_maxima(x_.format, x_.at(row, 0), static_cast<std::size_t>(x_.columns),
                   static_cast<std::size_t>(block()), nan(), own.maxima.data());
    }
    const auto size = static_cast<std::size_t>(width());
    std::visit([&](const auto& scales) { scales.of(maxima, size, own.blocks); }, scales_);
    for (const float scale : own.blocks.scales) {
      sums.scale_inv_min = smaller(sums.scale_inv_min, scale);
      sums.scale_inv_max = larger(sums.scale_inv_max, scale);
    }
  }

  ElementMatrix x_;
  WhatIfCast cast_;
  WhatIfScales scales_;
  std::vector<float> maxima_;
};

// Strips have the height of the longest block, so that all casts read a strip while it is in the
// cache.
void read_maxima(const ElementMatrix& x, std::vector<WhatIf>& casts) {
  constexpr std::int64_t kStrip = 128;
  if (std::ranges::none_of(casts, &WhatIf::is_down_columns)) return;
  at::parallel_for(0, rounded_up_quotient(x.rows, kStrip), kGrain / (kStrip * x.columns) + 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t strip = begin; strip < end; ++strip) {
                       const std::int64_t first = strip * kStrip;
                       for (WhatIf& cast : casts) {
                         if (!cast.is_down_columns()) continue;
                         cast.read_maxima(first, std::min(x.rows, first + kStrip));
                       }
                     }
                   });
}

// Returns one CastSums per cast.
std::vector<CastSums> read_rows(const std::vector<WhatIf>& casts, std::int64_t first,
                                std::int64_t last) {
  std::vector<CastSums> sums(casts.size());
  std::vector<RowState> rows;
  for (const WhatIf& cast : casts) rows.push_back(cast.row_for_thread());
  for (std::int64_t row = first; row < last; ++row) {
    for (std::size_t i = 0; i < casts.size(); ++i) casts[i].add(row, rows[i], sums[i]);
  }
  return sums;
}

std::vector<CastSums> read_casts(const ElementMatrix& x, const std::vector<WhatIf>& casts) {
  const std::int64_t grain = std::max<std::int64_t>(1, kStatisticsPart / x.columns);
  const std::int64_t count = rounded_up_quotient(x.rows, grain);
  std::vector<std::vector<CastSums>> parts(static_cast<std::size_t>(count));
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      parts[static_cast<std::size_t>(i)] =
          read_rows(casts, i * grain, std::min(x.rows, (i + 1) * grain));
    }
  });
  std::vector<CastSums> whole(casts.size());
  for (const std::vector<CastSums>& part : parts) {
    for (std::size_t i = 0; i < whole.size(); ++i) merge(whole[i], part[i]);
  }
  return whole;
}

void accumulate_what_if_statistics_cpu(const at::Tensor& x, at::IntArrayRef formats,
                                       at::IntArrayRef modes, at::IntArrayRef squares,
                                       at::IntArrayRef columnwise, at::TensorList accumulators) {
  const std::vector<WhatIfCast> given =
      ops::check_what_if_statistics(x, {formats, modes, squares, columnwise}, accumulators);
  if (x.numel() == 0 || given.empty() || ops::gate_is_shut()) return;
  const at::Tensor contiguous = x.contiguous();
  const ElementMatrix matrix = as_matrix(contiguous, get_format(x.scalar_type()));
  const bool needs_amax = std::ranges::any_of(
      given, [](const WhatIfCast& cast) { return scheme(cast.mode).has_tensor_scale(); });
  const float amax = needs_amax ? largest_number(matrix) : 0.0F;
  std::vector<WhatIf> casts;
  for (const WhatIfCast& cast : given) casts.emplace_back(matrix, cast, amax);
  read_maxima(matrix, casts);
  const std::vector<CastSums> sums = read_casts(matrix, casts);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    merge_words(sums[i], accumulators[i].mutable_data_ptr<std::int64_t>());
  }
}

}  // namespace
}  // namespace telens::kernels

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("accumulate_what_if_statistics",
               TORCH_FN(telens::kernels::accumulate_what_if_statistics_cpu));
}
