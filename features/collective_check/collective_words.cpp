#include "features/collective_check/collective_words.h"

#include <algorithm>
#include <bit>

namespace telens::features {

using collective_words::kEnded, collective_words::kRank, collective_words::kResult,
    collective_words::kSent, collective_words::kShape, collective_words::kWords;

void append_words(const SeenCollective& seen, RankWords& words) {
  const std::size_t begin = words.size();
  words.resize(begin + kWords);
  const std::span row = std::span(words).subspan(begin);
  row[0] = static_cast<std::int64_t>(seen.key);
  row[kShape] = seen.shape;
  row[kRank] = seen.rank;
  row[kEnded] = seen.result.defined() ? 1 : 0;
  if (seen.kind == CollectiveKind::gather) {
    std::copy_n(seen.sent.const_data_ptr<std::int64_t>(), 2, row.begin() + kSent);
    return;
  }
  if (sends_rows(seen.kind)) {
    static_assert(kExchangeWords <= kSumsNumbers);
    const auto copy = [&](const TensorHandle& from, std::size_t at) {
      std::copy_n(from.const_data_ptr<std::int64_t>(), kExchangeWords,
                  row.begin() + static_cast<std::ptrdiff_t>(at));
    };
    copy(seen.sent, kSent);
    if (seen.result.defined()) copy(seen.result, kResult);
    return;
  }
  const auto put = [&](const TensorHandle& sums, std::size_t at) {
    const auto* numbers = sums.const_data_ptr<double>();
    for (std::int64_t i = 0; i < kSumsNumbers; ++i) {
      row[at + static_cast<std::size_t>(i)] = std::bit_cast<std::int64_t>(numbers[i]);
    }
  };
  put(seen.sent, kSent);
  if (seen.result.defined()) put(seen.result, kResult);
}

ToldCollectives::ToldCollectives(std::span<const SeenCollective> own,
                                 std::span<const RankWords> of_ranks) {
  for (const SeenCollective& each : own) by_key_.try_emplace(each.key);
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const std::span<const std::int64_t> words(of_ranks[rank]);
    for (std::size_t i = 0; i + kWords <= words.size(); i += kWords) {
      const auto known = by_key_.find(static_cast<std::uint64_t>(words[i]));
      if (known == by_key_.end()) continue;
      known->second.push_back({static_cast<int>(rank), words.subspan(i, kWords)});
    }
  }
}

std::span<const ToldCollective> ToldCollectives::of(std::uint64_t key) const {
  const auto known = by_key_.find(key);
  if (known == by_key_.end()) return {};
  return known->second;
}

}  // namespace telens::features
