#include "features/accumulators.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/ops/statistics_layout.h"

namespace telens::features {
namespace {

std::int64_t casts_of(const RequestSet& set) {
  return static_cast<std::int64_t>(set.casts().size());
}

}  // namespace

Accumulators Accumulators::of_nothing(const RequestSet& set, const at::Device& device) {
  Accumulators made{ops::empty_statistics(casts_of(set), device)};
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

void Accumulators::copy_from(const Accumulators& other) {
  sums.copy_(other.sums);
  for (std::size_t i = 0; i < block_casts.size(); ++i) block_casts[i].copy_(other.block_casts[i]);
  for (std::size_t i = 0; i < ranges.size(); ++i) ranges[i].copy_(other.ranges[i]);
}

void Accumulators::reset() {
  ops::reset_statistics(sums);
  for (at::Tensor& each : block_casts) ops::reset_block_casts(each);
  for (at::Tensor& each : ranges) ops::reset_block_ranges(each);
}

void SpareAccumulators::add(Accumulators accumulators) {
  accumulators.reset();
  const std::lock_guard lock(mutex_);
  sums_.push_back(std::move(accumulators.sums));
  std::ranges::move(accumulators.block_casts, std::back_inserter(block_casts_));
  std::ranges::move(accumulators.ranges, std::back_inserter(ranges_));
}

at::Tensor SpareAccumulators::take(std::vector<at::Tensor>& from, std::int64_t words,
                                   const at::Device& device) {
  const auto found = std::ranges::find_if(from, [&](const at::Tensor& each) {
    return each.numel() == words && each.device() == device;
  });
  if (found == from.end()) return {};
  at::Tensor taken = std::move(*found);
  from.erase(found);
  return taken;
}

Accumulators SpareAccumulators::take_what_is_left(const RequestSet& set, const at::Device& device) {
  const std::lock_guard lock(mutex_);
  Accumulators taken{take(sums_, statistics_words(casts_of(set)), device)};
  for (std::size_t i = 0; i < set.block_casts().size(); ++i) {
    taken.block_casts.push_back(take(block_casts_, kCastSumsWords, device));
  }
  for (std::size_t i = 0; i < set.blocks().size(); ++i) {
    taken.ranges.push_back(take(ranges_, kBlockRangesWords, device));
  }
  return taken;
}

Accumulators SpareAccumulators::take(const RequestSet& set, const at::Device& device) {
  Accumulators taken = take_what_is_left(set, device);
  if (!taken.sums.defined()) taken.sums = ops::empty_statistics(casts_of(set), device);
  for (at::Tensor& each : taken.block_casts) {
    if (!each.defined()) each = ops::empty_block_casts(device);
  }
  for (at::Tensor& each : taken.ranges) {
    if (!each.defined()) each = ops::empty_block_ranges(device);
  }
  return taken;
}

std::optional<Accumulators> SpareAccumulators::take_spare(const RequestSet& set,
                                                          const at::Device& device) {
  Accumulators taken = take_what_is_left(set, device);
  const auto is_left = [](const at::Tensor& each) { return each.defined(); };
  if (taken.sums.defined() && std::ranges::all_of(taken.block_casts, is_left) &&
      std::ranges::all_of(taken.ranges, is_left)) {
    return taken;
  }
  return std::nullopt;  // the graph is not to be: what was taken is lost with it
}

}  // namespace telens::features
