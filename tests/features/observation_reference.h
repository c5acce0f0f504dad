// The statistics of an observed tensor, computed from the tensor itself: element by element, in
// long double, with the bounds that the documentation promises.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/names.h"
#include "core/ops/statistics_layout.h"
#include "tests/core/statistics_reference.h"

namespace telens::testing {

struct Expected {
  double value;
  double bound = 0;  // counters and extremes: exact
};
using ExpectedValues = std::map<std::string, Expected>;

// A low-precision copy that a GEMM reads.
struct ObservedCopy {
  at::Tensor decoded;     // FP32
  at::Tensor scales_inv;  // any number of them
};

// One micro-batch of a tensor.
struct Observed {
  at::Tensor x;                           // the high-precision matrix
  FormatId what_if = FormatId::e4m3;      // format of per-tensor recipes that do not run
  std::optional<ObservedCopy> copy = {};  // if the layer runs quantized
  std::optional<float> scale = {};        // set under a running recipe with one scale a tensor
};

// ---- statistics of the high-precision tensor

inline void expect_base(const TensorSums& sums, ExpectedValues& all) {
  const auto n = static_cast<double>(sums.numel);
  const double amax = std::max(std::abs(sums.min), std::abs(sums.max));
  const double deviation = std::sqrt(sums.m2 / (n - 1));
  // The square root halves a relative error; one per mille is added for the square of the bound.
  const double norm = std::sqrt(sums.sum_squares);
  const double norm_bound = 1.001 * std::ldexp(norm, -17);
  const double deviation_bound =
      1.001 * std::ldexp(sums.sum_squares / (n - 1), -14) / (2 * deviation);
  const auto count = [](std::int64_t of) { return Expected{static_cast<double>(of)}; };
  all = {{"min", {sums.min}},
         {"max", {sums.max}},
         {"mean", {sums.sum / n, std::ldexp(sums.l1 / n, -16)}},
         {"std", {deviation, deviation_bound}},
         {"l1_norm", {sums.l1, std::ldexp(sums.l1, -16)}},
         {"l2_norm", {norm, norm_bound}},
         {"cur_amax", {amax}},
         {"dynamic_range", {std::log2(amax) - std::log2(sums.smallest_nonzero), 1e-12}},
         {"numel", count(sums.numel)},
         {"nan", count(sums.nan)},
         {"posinf", count(sums.posinf)},
         {"neginf", count(sums.neginf)},
         {"nonfinite", count(sums.nan + sums.posinf + sums.neginf)},
         {"zeros", count(sums.zeros)},
         {"subnormals", count(sums.subnormals)}};
}

// log2 of the largest quotient of two nonzero magnitudes of one block of height x width.
inline double largest_range(const at::Tensor& matrix, std::int64_t height, std::int64_t width) {
  const at::Tensor magnitudes = matrix.to(at::kDouble).abs();
  double largest = 0;
  for (std::int64_t row = 0; row < matrix.size(0); row += height) {
    for (std::int64_t column = 0; column < matrix.size(1); column += width) {
      const at::Tensor block =
          magnitudes.slice(0, row, row + height).slice(1, column, column + width);
      const at::Tensor nonzero = block.masked_select(block > 0);
      if (nonzero.numel() == 0) continue;
      largest =
          std::max(largest, std::log2(nonzero.max().item<double>() / nonzero.min().item<double>()));
    }
  }
  return largest;
}

// Rows of 16 elements and squares of 32, as configured by kObserveAll in
// observed_training_test.cpp.
inline void expect_blocks(const std::vector<Observed>& parts, TensorName tensor,
                          ExpectedValues& all) {
  const bool columns_too = tensor == TensorName::activation || tensor == TensorName::weight;
  double rows = 0, squares = 0;
  for (const Observed& part : parts) {
    rows = std::max(rows, largest_range(part.x, 1, 16));
    if (columns_too) rows = std::max(rows, largest_range(part.x, 16, 1));
    squares = std::max(squares, largest_range(part.x, 32, 32));
  }
  const std::string suffix = columns_too ? "_max_over_orientations" : "";
  const std::string name = "max_blockwise_dynamic_range_block_size_";
  all[name + "16_dims_1" + suffix] = {rows, 1e-12};
  all[name + "32_dims_2" + suffix] = {squares, 1e-12};
}

// ---- statistics of casts

inline void expect_cast_values(const CastSums& sums, const std::string& recipe,
                               ExpectedValues& all) {
  const auto n = static_cast<double>(sums.numel);
  const double mse = sums.squared_error / n;
  all[recipe + "underflows%"] = {100.0 * static_cast<double>(sums.underflows) / n};
  all[recipe + "overflows%"] = {100.0 * static_cast<double>(sums.overflows) / n};
  all[recipe + "saturated"] = {static_cast<double>(sums.saturated)};
  all[recipe + "scale_inv_min"] = {sums.scale_inv_min};
  all[recipe + "scale_inv_max"] = {sums.scale_inv_max};
  all[recipe + "mse"] = {mse, std::ldexp(mse, -16)};
}

// The largest code divided by the amax. No amax of these tests is zero.
inline float get_current_scale(const at::Tensor& x, FormatId format) {
  const float largest = format == FormatId::e4m3 ? E4M3::kMax : E5M2::kMax;
  return largest / x.abs().max().item<float>();
}

// Computes the expected values from the codes that fed the GEMMs, whatever the recipe.
inline void expect_copies(const std::vector<Observed>& parts, ExpectedValues& all) {
  std::int64_t numel = 0, underflows = 0;
  double squared_error = 0, smallest = std::numeric_limits<double>::infinity(), largest = 0;
  for (const Observed& part : parts) {
    const at::Tensor x = part.x.to(at::kDouble).flatten();
    const at::Tensor decoded = part.copy->decoded.to(at::kDouble).flatten();
    numel += x.numel();
    underflows += x.ne(0).logical_and(decoded.eq(0)).sum().item<std::int64_t>();
    squared_error += (decoded - x).square().sum().item<double>();
    smallest = std::min(smallest, part.copy->scales_inv.min().item<double>());
    largest = std::max(largest, part.copy->scales_inv.max().item<double>());
  }
  const double mse = squared_error / static_cast<double>(numel);
  all["underflows%"] = {100.0 * static_cast<double>(underflows) / static_cast<double>(numel)};
  all["mse"] = {mse, std::ldexp(mse, -16)};
  all["scale_inv_min"] = {smallest};
  all["scale_inv_max"] = {largest};
}

inline ExpectedValues expected_values(const std::vector<Observed>& parts, TensorName tensor,
                                      const std::string& running_recipe) {
  std::vector<at::Tensor> flat;
  for (const Observed& part : parts) flat.push_back(part.x.flatten());
  ExpectedValues all;
  expect_base(reference_sums(at::cat(flat)), all);
  expect_blocks(parts, tensor, all);
  if (!is_gemm_input(tensor)) return all;
  CastSums what_if, running;
  for (const Observed& part : parts) {
    merge(what_if, reference_cast(part.x, part.what_if, get_current_scale(part.x, part.what_if)));
    if (part.scale) merge(running, reference_cast(part.x, part.what_if, *part.scale));
  }
  if (running.numel > 0) {
    expect_cast_values(running, "", all);
    expect_cast_values(running, running_recipe + "_", all);
  }
  expect_cast_values(what_if, "fp8_current_scaling_", all);
  if (parts.front().copy) expect_copies(parts, all);
  return all;
}

}  // namespace telens::testing
