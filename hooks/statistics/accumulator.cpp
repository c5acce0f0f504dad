#include "hooks/statistics/accumulator.h"

namespace telens {

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

}  // namespace telens
