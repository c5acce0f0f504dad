// Digests of the rows that an all-to-all carries, as many words for any number of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace telens::features {

// Ranks of a group whose number leaves the same remainder share a word. So in a group of no more
// ranks than words each pair of ranks has a word of its own.
inline constexpr std::int64_t kExchangeWords = 11;

struct ExchangedRows {
  const at::Tensor& rows;                // [sum of counts, ...]
  std::span<const std::int64_t> counts;  // to each rank of the group, or from it
  std::int64_t rank;                     // this one's
  bool received = false;
};

// int64 [kExchangeWords] on the rows' device: for each word a sum of the digests of its ranks'
// rows, times a factor of the pair, so that no two pairs that are taken for each other cancel out.
at::Tensor exchange_words(const ExchangedRows& exchanged);

}  // namespace telens::features
