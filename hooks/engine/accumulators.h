// Device memory to which the reads of one tensor add, as far as their requests are equal.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "core/ops/statistics.h"
#include "hooks/engine/block_copies.h"
#include "hooks/statistics/requests.h"

namespace telens::features {

// Accumulators of one RequestSet on one device: its casts, block casts and blocks in their order.
struct Accumulators {
  at::Tensor sums;                           // statistics_words(casts)
  std::vector<at::Tensor> block_casts = {};  // kCastSumsWords each
  std::vector<at::Tensor> ranges = {};       // kBlockRangesWords each

  static Accumulators of_nothing(const RequestSet& set, const at::Device& device);

  // All but the sums, which may be kept apart.
  void add_blocks(const at::Tensor& x, const RequestSet& set, std::span<const BlockCopy> copies,
                  bool both_orientations);
  void add(const at::Tensor& x, const RequestSet& set, const ops::StatisticsCasts& casts,
           std::span<const BlockCopy> copies, bool both_orientations);

  // A copy of the present sums, in memory of its own.
  Accumulators clone() const;
};

}  // namespace telens::features
