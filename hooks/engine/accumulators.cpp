#include "hooks/engine/accumulators.h"

namespace telens::features {

Accumulators Accumulators::of_nothing(const RequestSet& set, const at::Device& device) {
  const auto casts = static_cast<std::int64_t>(set.casts().size());
  Accumulators made{ops::empty_statistics(casts, device)};
  for (std::size_t i = 0; i < set.block_casts().size(); ++i) {
    made.block_casts.push_back(ops::empty_block_casts(device));
  }
  for (std::size_t i = 0; i < set.blocks().size(); ++i) {
    made.ranges.push_back(ops::empty_block_ranges(device));
  }
  return made;
}

void Accumulators::add_blocks(const at::Tensor& x, const RequestSet& set,
                              std::span<const BlockCopy> copies, bool both_orientations) {
  accumulate_block_casts(copies, block_casts);
  for (std::size_t i = 0; i < set.blocks().size(); ++i) {
    const BlockShape& shape = set.blocks()[i];
    ops::accumulate_blockwise_dynamic_range(x, {shape.size, shape.dims, both_orientations},
                                            ranges[i]);
  }
}

void Accumulators::add(const at::Tensor& x, const RequestSet& set,
                       const ops::StatisticsCasts& casts, std::span<const BlockCopy> copies,
                       bool both_orientations) {
  ops::accumulate_statistics(x, casts, sums);
  add_blocks(x, set, copies, both_orientations);
}

Accumulators Accumulators::clone() const {
  Accumulators copy{sums.clone()};
  for (const at::Tensor& each : block_casts) copy.block_casts.push_back(each.clone());
  for (const at::Tensor& each : ranges) copy.ranges.push_back(each.clone());
  return copy;
}

}  // namespace telens::features
