// The words that represent a collective: key, shape, rank in its group, the sums of the sent data
// (for a gather the two words of its digest, for an exchange its words), the sums of the result,
// and whether there is a result.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "features/collective_check/seen_collective.h"
#include "hooks/rank_group.h"

namespace telens::features {

namespace collective_words {
inline constexpr std::size_t kShape = 1;
inline constexpr std::size_t kRank = 2;
inline constexpr std::size_t kSent = 3;
inline constexpr std::size_t kResult = kSent + static_cast<std::size_t>(kSumsNumbers);
inline constexpr std::size_t kEnded = kResult + static_cast<std::size_t>(kSumsNumbers);
inline constexpr std::size_t kWords = kEnded + 1;
}  // namespace collective_words

// Appends a collective whose tensors are on the host.
void append_words(const SeenCollective& seen, RankWords& words);

// A collective as reported by one rank.
struct ToldCollective {
  int world_rank;
  std::span<const std::int64_t> words;  // kWords of them
};

// Collectives of this rank, by key, as reported by all ranks: each row of their words is read once.
// The words must outlive this object.
class ToldCollectives {
 public:
  ToldCollectives(std::span<const SeenCollective> own, std::span<const RankWords> of_ranks);

  // In the order of world ranks; empty for a collective that is not among `own`.
  std::span<const ToldCollective> of(std::uint64_t key) const;

 private:
  std::unordered_map<std::uint64_t, std::vector<ToldCollective>> by_key_;
};

}  // namespace telens::features
