#include "hooks/statistics/accumulator.h"

#include <algorithm>
#include <cmath>

namespace telens {

// ---- the tensor and its casts

void StatisticsAccumulator::add(std::span<const std::int64_t> words) {
  const auto expected =
      static_cast<std::size_t>(statistics_words(static_cast<std::int64_t>(casts_.size())));
  if (words.size() != expected) {
    raise<UsageError>("statistics: {} words came for a tensor with {} casts; expected {}",
                      words.size(), casts_.size(), expected);
  }
  telens::merge(tensor_, from_words<TensorSums>(words.first(kTensorSumsWords)));
  for (std::size_t i = 0; i < casts_.size(); ++i) {
    const std::size_t begin = kTensorSumsWords + i * kCastSumsWords;
    telens::merge(casts_[i], from_words<CastSums>(words.subspan(begin, kCastSumsWords)));
  }
}

void StatisticsAccumulator::merge(const StatisticsAccumulator& other) {
  if (casts_.size() != other.casts_.size()) {
    raise<UsageError>("statistics: results with {} and {} casts cannot be merged", casts_.size(),
                      other.casts_.size());
  }
  telens::merge(tensor_, other.tensor_);
  for (std::size_t i = 0; i < casts_.size(); ++i) {
    telens::merge(casts_[i], other.casts_[i]);
  }
}

std::vector<std::int64_t> StatisticsAccumulator::words() const {
  std::vector<std::int64_t> words;
  words.reserve(
      static_cast<std::size_t>(statistics_words(static_cast<std::int64_t>(casts_.size()))));
  append_words(words, tensor_);
  for (const CastSums& cast : casts_) {
    append_words(words, cast);
  }
  return words;
}

// ---- blocks

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
