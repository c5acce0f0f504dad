// Sums over all reads of a tensor on the host: the micro-batches of a step, then the ranks of a
// group. No LibTorch.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/formats/scheme.h"
#include "core/ops/statistics_layout.h"

namespace telens {

// ---- the tensor and its casts

// The words of a struct in core/ops/statistics_layout.h.
template <typename Sums>
using WordsOf = std::array<std::int64_t, sizeof(Sums) / sizeof(std::int64_t)>;

// Converts a struct of core/ops/statistics_layout.h from and to an operator's words.
template <typename Sums>
Sums from_words(std::span<const std::int64_t> words) {
  WordsOf<Sums> copy{};
  if (words.size() != copy.size()) {
    raise<UsageError>("statistics: {} words came where {} were expected", words.size(),
                      copy.size());
  }
  std::copy(words.begin(), words.end(), copy.begin());
  return std::bit_cast<Sums>(copy);
}

template <typename Sums>
void append_words(std::vector<std::int64_t>& words, const Sums& sums) {
  const auto copy = std::bit_cast<WordsOf<Sums>>(sums);
  words.insert(words.end(), copy.begin(), copy.end());
}

// The words of `telens::statistics`, typed. Adding parts in any order and grouping gives the same
// counters and extremes as one read of the whole, and the same sums up to rounding.
class StatisticsAccumulator {
 public:
  explicit StatisticsAccumulator(std::size_t casts = 0) : casts_(casts) {}

  // words: the operator's result, statistics_words(casts) words.
  void add(std::span<const std::int64_t> words);
  void merge(const StatisticsAccumulator& other);

  // Returns true if no elements were added and thus nothing can be recorded.
  bool empty() const { return tensor_.numel == 0; }

  const TensorSums& tensor() const { return tensor_; }
  const std::vector<CastSums>& casts() const { return casts_; }

  // Returns the words in the layout that `add` accepts, for a collective.
  std::vector<std::int64_t> words() const;

 private:
  TensorSums tensor_;
  std::vector<CastSums> casts_;
};

// ---- the effect of a block format on the blocks of a tensor's copy: sums over micro-batches, the
// worst blocks, and a histogram of scales

// Position of a block, counted in blocks.
struct BlockPlace {
  std::int64_t row = 0;
  std::int64_t column = 0;

  auto operator<=>(const BlockPlace&) const = default;
};

struct WorstBlock {
  double value = 0;
  BlockPlace place;
};

// The k blocks with the largest values. NaN is largest; among equal values the first added is
// first. Blocks with value 0 are not listed.
class WorstBlocks {
 public:
  explicit WorstBlocks(std::size_t k = 0) : k_(k) {}

  void add(const WorstBlock& block);
  const std::vector<WorstBlock>& list() const { return list_; }  // worst first

 private:
  std::size_t k_;
  std::vector<WorstBlock> list_;
};

// The bins of scales: the codes of E8M0 and E4M3, the exponent fields of FP32.
inline constexpr std::size_t kScaleBins = 256;

// The bin of the largest finite scale of a block mode. The smallest scale is bin 0 in all modes.
constexpr std::size_t largest_scale_bin(ScalingMode mode) {
  return scheme(mode).scale_format == FormatId::e4m3 ? 0x7E : 0xFE;
}

class BlockSums {
 public:
  BlockSums() = default;
  explicit BlockSums(std::size_t worst) : by_underflows_(worst), by_mse_(worst) {}

  // Adds a block that has elements, and the bin of its scale.
  void add(const BlockErrors& block, std::size_t scale_bin, ScalingMode mode, BlockPlace place);

  std::int64_t blocks() const { return blocks_; }
  // Returns the number of blocks for each bin of scales.
  const std::array<std::int64_t, kScaleBins>& scales() const { return scales_; }
  const WorstBlocks& by_underflows() const { return by_underflows_; }  // in percent
  const WorstBlocks& by_mse() const { return by_mse_; }

  // In the order of kBlockStatistics, in percent; NaN without blocks.
  std::vector<double> values() const;

 private:
  struct Share {
    double sum = 0;
    double largest = 0;
    void add(double percent);
  };

  std::int64_t blocks_ = 0;
  std::int64_t zero_ = 0;
  std::int64_t smallest_scale_ = 0;
  std::int64_t largest_scale_ = 0;
  Share underflows_;
  Share saturated_;
  std::array<std::int64_t, kScaleBins> scales_{};
  WorstBlocks by_underflows_;
  WorstBlocks by_mse_;
};

// Names of BlockSums::values().
inline constexpr std::array<std::string_view, 7> kBlockStatistics{
    "zero_blocks%",          "smallest_scale_blocks%", "largest_scale_blocks%",
    "block_underflows%_max", "block_underflows%_mean", "block_saturated%_max",
    "block_saturated%_mean"};

// Returns the share in percent. NaN if `whole` is 0.
inline double percent(std::int64_t part, std::int64_t whole) {
  return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace telens
