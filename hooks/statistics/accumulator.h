// Sums over all reads of a tensor on the host: the micro-batches of a step, then the ranks of a
// group. No LibTorch.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/ops/statistics_layout.h"

namespace telens {

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

}  // namespace telens
