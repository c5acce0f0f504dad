// The collectives of an iteration as observed by this rank, and their mismatches over all ranks.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "features/collective_check/seen_collective.h"
#include "hooks/collective_observer.h"
#include "hooks/rank_group.h"

namespace telens::features {

// An error in a collective of this rank.
struct WrongCollective {
  CollectivePlace place;
  std::string text;       // a sentence without a period, starting with the collective's kind
  std::int64_t lost = 0;  // nonfinite elements that are missing from the result
};

// Returns the collectives of this rank that are wrong, in order. The words come from all ranks.
std::vector<WrongCollective> wrong_ones(std::span<const SeenCollective> own,
                                        std::span<const RankWords> of_ranks);

class SeenCollectives {
 public:
  // Begins a collective. Returns its number.
  std::size_t begin(const ObservedCollective& call, CollectivePlace place);
  // Call this when its result is available.
  void end(std::size_t number, const TensorHandle& result);
  void clear() {
    all_.clear();
    in_group_.clear();
  }

  // Copies everything to the host and returns the words.
  RankWords words();

  // The words of all the ranks, from words().
  std::vector<WrongCollective> wrong(std::span<const RankWords> of_ranks) const {
    return wrong_ones(all_, of_ranks);
  }
  // Returns every place at which a collective was compared.
  std::vector<CollectivePlace> places() const;

 private:
  std::vector<SeenCollective> all_;
  std::map<std::uint64_t, std::uint64_t> in_group_;  // number of collectives so far, by group
};

}  // namespace telens::features
