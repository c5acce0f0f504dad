// Per-tensor scales: the fit of a scale in an iteration's reads, the memory of the last observed
// iteration, and the scales of other recipes. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>

#include "core/formats/format_id.h"
#include "core/ops/statistics_layout.h"

namespace telens {

// ---- how well a scale fits its tensor

// The origin of a scale in one read, in addition to its value.
struct ScaleOrigin {
  double largest = 0;       // largest finite value of the target format
  std::int64_t margin = 0;  // bits that delayed scaling reserves above the amax
  // Number of updates of the amax history from which the scale was computed; nullopt if the scale
  // was computed from the tensor itself.
  std::optional<std::int64_t> updates = std::nullopt;
};

// One read of a tensor.
struct ScaleRead {
  TensorSums tensor;
  CastSums cast;  // with the per-tensor scale
  ScaleOrigin origin;
};

// Merges scales over the reads of an iteration, then over ranks: counts are added, otherwise the
// worst value is kept. Staleness and headroom are NaN if the tensor has a NaN. Plain data with
// 8-byte fields, like core/ops/statistics_layout.h.
struct ScaleSums {
  std::int64_t elements = 0;
  std::int64_t clipped = 0;  // finite elements beyond the scale's range
  std::int64_t fits = 0;     // reads with a nonzero amax; zeros fit any scale
  double staleness = -std::numeric_limits<double>::infinity();  // largest
  double headroom = std::numeric_limits<double>::infinity();    // smallest
  std::int64_t jumps = 0;                                       // reads with a previous scale
  double jump = 0;        // the largest, up or down; up if both are equal
  std::int64_t ages = 0;  // ranks with a read
  std::int64_t age = 0;   // largest
};

void merge(ScaleSums& into, const ScaleSums& part);

// Remembers the last scale of a tensor.
class ScaleMemory {
 public:
  // Merges the reads of an iteration, in order. Iterations must be added in order too.
  ScaleSums add(std::int64_t iteration, std::span<const ScaleRead> reads);

 private:
  struct Last {
    double scale_inv = 0;
    std::int64_t updates = 0;
    std::int64_t updated = 0;  // the iteration in which that number first occurred
  };

  std::optional<Last> last_;
};

// ---- the scales that a recipe would have used, computed from observed amaxes

// The origin of the amax of a scale.
enum class AmaxSource : std::uint8_t {
  current,      // the tensor itself: current scaling
  most_recent,  // the previous iteration: delayed scaling
  max,          // the largest of the previous iterations: delayed scaling
};

struct WhatIfRecipe {
  AmaxSource amax = AmaxSource::current;
  std::size_t history = 1024;  // number of previous iterations for `max`; at least 1
  int margin = 0;              // the scale is divided by 2^margin
  bool power_of_two = false;
};

// Uses the recipes' formulas: core/ops/scale_formula.h. Delayed scaling begins with scale 1. Its
// previous iteration is the previous call of next().
class WhatIfScale {
 public:
  WhatIfScale(const WhatIfRecipe& recipe, FormatId fp8_format);

  // Returns the scale for casting a tensor with this amax. Call in iteration order.
  float next(float amax);

 private:
  float largest_of_history() const;

  WhatIfRecipe recipe_;
  float fp8_max_;
  float scale_ = 1;            // for the next tensor, with delayed scaling
  std::deque<float> history_;  // newest first
};

}  // namespace telens
