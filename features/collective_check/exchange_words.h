// Digests of the rows that an all-to-all transfers; the number of words is the same for any number
// of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace telens::features {

// Ranks in a group share a word if their numbers have the same remainder. If a group has at most as
// many ranks as words, each pair of ranks has a separate word.
inline constexpr std::int64_t kExchangeWords = 11;

struct ExchangedRows {
  const at::Tensor& rows;                // [sum of counts, ...]
  std::span<const std::int64_t> counts;  // to each rank of the group, or from it
  std::int64_t rank;                     // this rank's
  bool received = false;
};

// Returns int64 [kExchangeWords] on the rows' device: for each word, a sum of the digests of its
// ranks' rows, each multiplied by a factor of the pair, so that two pairs that are mistaken for
// each other do not cancel out.
at::Tensor exchange_words(const ExchangedRows& exchanged);

}  // namespace telens::features
