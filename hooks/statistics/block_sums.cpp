#include "hooks/statistics/block_sums.h"

#include <algorithm>
#include <cmath>

#include "hooks/statistics/percent.h"

namespace telens {
namespace {

bool is_worse(double a, double b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

}  // namespace

void WorstBlocks::add(const WorstBlock& block) {
  if (block.value == 0) return;
  if (list_.size() == k_ && (k_ == 0 || !is_worse(block.value, list_.back().value))) return;
  const auto place = std::ranges::find_if(
      list_, [&](const WorstBlock& known) { return is_worse(block.value, known.value); });
  list_.insert(place, block);
  if (list_.size() > k_) list_.pop_back();
}

void BlockSums::Share::add(double percent) {
  sum += percent;
  largest = std::max(largest, percent);
}

void BlockSums::add(const BlockErrors& block, std::size_t scale_bin, ScalingMode mode,
                    BlockPlace place) {
  ++blocks_;
  ++scales_[scale_bin];
  const bool is_zero = block.nonzero == 0;
  zero_ += is_zero;
  smallest_scale_ += !is_zero && scale_bin == 0;
  largest_scale_ += scale_bin == largest_scale_bin(mode);
  const double underflows = percent(block.underflows, block.elements);
  underflows_.add(underflows);
  saturated_.add(percent(block.saturated, block.elements));
  by_underflows_.add({underflows, place});
  by_mse_.add({block.squared_error / static_cast<double>(block.elements), place});
}

std::vector<double> BlockSums::values() const {
  const auto blocks = static_cast<double>(blocks_);
  return {percent(zero_, blocks_),          percent(smallest_scale_, blocks_),
          percent(largest_scale_, blocks_), underflows_.largest,
          underflows_.sum / blocks,         saturated_.largest,
          saturated_.sum / blocks};
}

}  // namespace telens
