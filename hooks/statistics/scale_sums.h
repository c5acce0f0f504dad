// How well the one scale of a tensor fits it: what the reads of an iteration say together, and what
// is remembered of the last observed iteration. No LibTorch.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "core/ops/statistics_layout.h"

namespace telens {

// The origin of one read's scale, beside its value.
struct ScaleOrigin {
  double largest = 0;       // finite value of the format that is cast to
  std::int64_t margin = 0;  // bits that delayed scaling leaves free above the amax
  // How often the amax history behind the scale has been updated; nullopt: the scale was made from
  // the tensor itself.
  std::optional<std::int64_t> updates = std::nullopt;
};

// One read of a tensor.
struct ScaleRead {
  TensorSums tensor;
  CastSums cast;  // with that one scale
  ScaleOrigin origin;
};

// Scales of all reads of one iteration, then of several ranks: counts add up, the worst of others.
// Staleness and headroom are NaN with a NaN in the tensor. Plain data of 8-byte fields, as those of
// core/ops/statistics_layout.h.
struct ScaleSums {
  std::int64_t elements = 0;
  std::int64_t clipped = 0;  // finite ones that are beyond what the scale has room for
  std::int64_t fits = 0;     // reads whose amax is not 0: one of zeros fits any scale
  double staleness = -std::numeric_limits<double>::infinity();  // largest of them
  double headroom = std::numeric_limits<double>::infinity();    // smallest of them
  std::int64_t jumps = 0;                                       // reads with a scale before them
  double jump = 0;        // the largest, up or down; up where both are equal
  std::int64_t ages = 0;  // ranks that read anything
  std::int64_t age = 0;   // largest of them
};

void merge(ScaleSums& into, const ScaleSums& part);

// The last scale of a tensor.
class ScaleMemory {
 public:
  // The reads of one iteration, in their order; iterations in theirs.
  ScaleSums add(std::int64_t iteration, std::span<const ScaleRead> reads);

 private:
  struct Last {
    double scale_inv = 0;
    std::int64_t updates = 0;
    std::int64_t updated = 0;  // in which iteration that number was first seen
  };

  std::optional<Last> last_;
};

}  // namespace telens
