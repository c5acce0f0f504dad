// Device code. Layer and RMS normalization of rows, and their gradients. Arithmetic is FP32, and
// stored values are rounded once. A fused quantization encodes the rounded values, so its codes
// equal those of the normalization followed by quantize.
//
// A block processes one row at a time and reads it two or three times, from the first-level cache
// after the first read: a row of 8192 BF16 elements takes 16 KB of 256 KB.
#pragma once

#include "core/kernels/cuda/approximations.cuh"
#include "core/kernels/cuda/quantize/quantize.cuh"
#include "core/ops/norm_formula.h"

namespace telens::cuda {

// [rows, columns], contiguous.
struct NormArguments {
  const void* x;
  std::int64_t rows;
  std::int64_t columns;
  const float* gamma;  // the factor: 1 + weight for zero-centered weights
  const float* beta;   // nullptr if the norm has no bias
  float eps;
  void* y;              // nullptr if not requested
  float* mean;          // [rows]; nullptr for RMS
  float* rstd;          // [rows]
  const float* scale;   // scale of the codes
  FormatId format;      // format of the codes: e4m3 or e5m2
  float* amax;          // becomes max(amax, max |y|); nullptr if not requested
  std::uint8_t* codes;  // nullptr if not requested
};

struct NormGradientArguments {
  const void* grad;
  const void* x;
  std::int64_t rows;
  std::int64_t columns;
  const float* gamma;
  const float* mean;  // [rows]; nullptr for RMS
  const float* rstd;  // [rows]
  void* dx;
};

// The gradients of gamma and beta, summed per chunk of rows: [chunks, columns].
struct NormParameterGradientArguments {
  const void* grad;
  const void* x;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t chunk_rows;
  const float* mean;  // [rows]; nullptr for RMS
  const float* rstd;  // [rows]
  float* dgamma;
  float* dbeta;  // nullptr for RMS
};

struct NormShared {
  float of_warp[2][kThreads / kWarp];
  BlockMaximum maximum;
};

// Two sums over a block, available to every thread. The order of summation depends on the block's
// shape only.
struct TwoSums {
  float first;
  float second;
};

template <typename Thread>
TELENS_DEVICE TwoSums sum_of_block(const Thread& thread, TwoSums sums, NormShared& shared) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    sums.first += thread.shuffle_xor(sums.first, mask);
    sums.second += thread.shuffle_xor(sums.second, mask);
  }
  thread.sync();  // the previous sums have been read
  const int warp = thread.index() / kWarp;
  if (thread.index() % kWarp == 0) {
    shared.of_warp[0][warp] = sums.first;
    shared.of_warp[1][warp] = sums.second;
  }
  thread.sync();
  TwoSums all{0, 0};
  for (int i = 0; i < kThreads / kWarp; ++i) {
    all.first += shared.of_warp[0][i];
    all.second += shared.of_warp[1][i];
  }
  return all;
}

// If the unit is 1 the product is exact, and the multiply-add is a subtraction.
TELENS_DEVICE float normalized(const ops::RowFactors& row, float x) {
  return multiply_add(x, row.unit, -row.mean) * row.rstd;
}

// gamma and beta of a pack's columns. Their addresses are aligned to packs.
template <int size>
struct NormFactors {
  Pack<float, size> gamma;
  Pack<float, size> beta;
  bool has_beta;

  static TELENS_DEVICE NormFactors of(const NormArguments& arguments, std::int64_t column) {
    NormFactors factors{load_pack<size>(arguments.gamma + column), {}, arguments.beta != nullptr};
    if (factors.has_beta) factors.beta = load_pack<size>(arguments.beta + column);
    return factors;
  }

  // Returns the normalized elements, rounded.
  template <typename Format>
  TELENS_DEVICE Words<typename Format::Bits, size> apply(
      const Words<typename Format::Bits, size>& x, const ops::RowFactors& row) const {
    float y[size];
    TELENS_UNROLL
    for (int j = 0; j < size; ++j) {
      const float value = normalized(row, widen_at<Format>(x, j)) * gamma.values[j];
      y[j] = has_beta ? value + beta.values[j] : value;
    }
    return narrow_all<Format>(y);
  }
};

// Calls visit(column) with the first column of this thread's packs in a row.
template <int pack_width, typename Thread, typename Visit>
TELENS_DEVICE void for_each_pack_of_row(const Thread& thread, std::int64_t columns,
                                        const Visit& visit) {
  for (std::int64_t i = std::int64_t{thread.index()} * pack_width; i < columns;
       i += std::int64_t{kThreads} * pack_width) {
    visit(i);
  }
}

template <typename Format, int pack_width, typename Thread>
TELENS_DEVICE void normalize_row(const NormArguments& arguments, std::int64_t row,
                                 const Scale& scale, std::uint32_t& largest, const Thread& thread,
                                 NormShared& shared) {
  using Bits = typename Format::Bits;
  const std::int64_t columns = arguments.columns;
  const auto count = static_cast<float>(columns);
  const auto* x = static_cast<const Bits*>(arguments.x) + row * columns;
  // accumulate(sum of the thread, element) for each element of the row.
  const auto sum = [&](const auto& accumulate) {
    float of_thread = 0;
    for_each_pack_of_row<pack_width>(thread, columns, [&](std::int64_t column) {
      const auto pack = load_words<pack_width>(x + column);
      TELENS_UNROLL
      for (int j = 0; j < pack_width; ++j) accumulate(of_thread, widen_at<Format>(pack, j));
    });
    return sum_of_block(thread, {of_thread, 0}, shared).first;
  };
  // The variance is computed from the deviations: in FP32, the difference of two nearly equal
  // numbers would lose a small variance around a large mean. In units of 1 the products are exact,
  // and the multiply-adds are additions. A row whose squares overflow is measured in larger units.
  float unit = 1.0F;
  float center = 0.0F;
  float squares = 0.0F;
  while (true) {
    if (arguments.mean != nullptr) {
      center = sum([&](float& all, float value) { all = multiply_add(value, unit, all); }) / count;
    }
    squares = sum([&](float& all, float value) {
      const float deviation = multiply_add(value, unit, -center);
      all += deviation * deviation;
    });
    if (squares <= FP32::kMax || unit != 1.0F) break;
    unit = ops::kLargeRowUnit;
  }
  const float mean = ops::mean_of_row(center, unit);
  const float rstd = ops::rstd_of_row(squares / count, arguments.eps, unit);
  if (thread.index() == 0) {
    if (arguments.mean != nullptr) arguments.mean[row] = mean;
    arguments.rstd[row] = rstd;
  }
  if (arguments.y == nullptr && arguments.codes == nullptr) return;
  const auto row_factors = ops::RowFactors::of(mean, rstd);
  for_each_pack_of_row<pack_width>(thread, columns, [&](std::int64_t column) {
    const auto pack = load_words<pack_width>(x + column);
    const auto factors = NormFactors<pack_width>::of(arguments, column);
    const auto y = factors.template apply<Format>(pack, row_factors);
    const std::int64_t at = row * columns + column;
    if (arguments.y != nullptr) store_words(static_cast<Bits*>(arguments.y) + at, y);
    if (arguments.codes != nullptr) {
      store_words(arguments.codes + at,
                  quantize_words<Format>(arguments.format, y, scale, largest));
    }
  });
}

template <typename Format, int pack_width, typename Thread>
TELENS_DEVICE void normalize(const NormArguments& arguments, const Thread& thread,
                             NormShared& shared) {
  const Scale scale = Scale::from(arguments.codes != nullptr ? *arguments.scale : 1.0F);
  std::uint32_t largest = 0;
  for (std::int64_t row = thread.block(); row < arguments.rows; row += thread.blocks()) {
    normalize_row<Format, pack_width>(arguments, row, scale, largest, thread, shared);
  }
  if (arguments.amax != nullptr) {
    update_amax<Format>(thread, largest_lane<Format>(largest), arguments.amax, shared.maximum);
  }
}

// With h = (x - mean) * rstd and g = grad * gamma:
//   dx = rstd * (g - mean(g) - h * mean(g * h)), without mean(g) for RMS
template <typename Format, int pack_width, typename Thread>
TELENS_DEVICE void normalize_backward(const NormGradientArguments& arguments, const Thread& thread,
                                      NormShared& shared) {
  using Bits = typename Format::Bits;
  const std::int64_t columns = arguments.columns;
  const auto count = static_cast<float>(columns);
  for (std::int64_t row = thread.block(); row < arguments.rows; row += thread.blocks()) {
    const auto* x = static_cast<const Bits*>(arguments.x) + row * columns;
    const auto* grad = static_cast<const Bits*>(arguments.grad) + row * columns;
    const float rstd = arguments.rstd[row];
    const auto row_factors =
        ops::RowFactors::of(arguments.mean != nullptr ? arguments.mean[row] : 0.0F, rstd);
    // Calls visit(j, g, h).
    const auto visit_elements = [&](std::int64_t column, const auto& visit) {
      const auto values = load_words<pack_width>(x + column);
      const auto grads = load_words<pack_width>(grad + column);
      const auto gamma = load_pack<pack_width>(arguments.gamma + column);
      TELENS_UNROLL
      for (int j = 0; j < pack_width; ++j) {
        visit(j, widen_at<Format>(grads, j) * gamma.values[j],
              normalized(row_factors, widen_at<Format>(values, j)));
      }
    };
    TwoSums sums{0, 0};  // of g and of g * h
    for_each_pack_of_row<pack_width>(thread, columns, [&](std::int64_t column) {
      visit_elements(column, [&](int, float g, float h) {
        sums.first += g;
        sums.second += g * h;
      });
    });
    sums = sum_of_block(thread, sums, shared);
    const float mean_g = arguments.mean != nullptr ? sums.first / count : 0.0F;
    const float mean_gh = sums.second / count;
    for_each_pack_of_row<pack_width>(thread, columns, [&](std::int64_t column) {
      float dx[pack_width];
      visit_elements(column,
                     [&](int j, float g, float h) { dx[j] = rstd * (g - mean_g - h * mean_gh); });
      store_words(static_cast<Bits*>(arguments.dx) + row * columns + column,
                  narrow_all<Format>(dx));
    });
  }
}

// Each thread sums one column over a chunk. Blocks are numbered by chunks within groups of kThreads
// columns.
template <typename Format, typename Thread>
TELENS_DEVICE void norm_parameter_gradients(const NormParameterGradientArguments& arguments,
                                            const Thread& thread) {
  using Bits = typename Format::Bits;
  const std::int64_t columns = arguments.columns;
  const std::int64_t groups = (columns + kThreads - 1) / kThreads;
  const std::int64_t chunk = thread.block() / groups;
  const std::int64_t column = thread.block() % groups * kThreads + thread.index();
  if (column >= columns) return;
  const std::int64_t first = chunk * arguments.chunk_rows;
  const std::int64_t end = first + arguments.chunk_rows;
  float dgamma = 0;
  float dbeta = 0;
  for (std::int64_t row = first; row < (end < arguments.rows ? end : arguments.rows); ++row) {
    const std::int64_t at = row * columns + column;
    const float grad = widen<Format>(static_cast<const Bits*>(arguments.grad)[at]);
    const float x = widen<Format>(static_cast<const Bits*>(arguments.x)[at]);
    const float mean = arguments.mean != nullptr ? arguments.mean[row] : 0.0F;
    dgamma += grad * normalized(ops::RowFactors::of(mean, arguments.rstd[row]), x);
    dbeta += grad;
  }
  arguments.dgamma[chunk * columns + column] = dgamma;
  if (arguments.dbeta != nullptr) arguments.dbeta[chunk * columns + column] = dbeta;
}

}  // namespace telens::cuda
