// The collectives of one iteration, as this rank saw them, and what does not fit together in what
// all ranks saw.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/distributed/collective_watch.h"
#include "features/collective_check/seen_collective.h"
#include "hooks/gather_over_ranks.h"

namespace telens::features {

// Something that is wrong with a collective of this rank.
struct WrongCollective {
  CollectivePlace place;
  std::string text;       // a sentence without a period, from the kind of the collective on
  std::int64_t lost = 0;  // elements that are not finite and did not come out
};

// Those of this rank's that are wrong, in their order; the words are those of all ranks.
std::vector<WrongCollective> wrong_ones(std::span<const SeenCollective> own,
                                        std::span<const RankWords> of_ranks);

class SeenCollectives {
 public:
  // A collective that begins. Returns its number.
  std::size_t begin(const CollectiveCall& call, CollectivePlace place);
  // Its result is there.
  void end(std::size_t number, const at::Tensor& result);
  void clear() {
    all_.clear();
    in_group_.clear();
  }

  // Brings everything to the host.
  RankWords words();

  // The words of all ranks, from words().
  std::vector<WrongCollective> wrong(std::span<const RankWords> of_ranks) const {
    return wrong_ones(all_, of_ranks);
  }
  // Every place at which a collective was compared.
  std::vector<CollectivePlace> places() const;

 private:
  std::vector<SeenCollective> all_;
  std::map<std::uint64_t, std::uint64_t> in_group_;  // how many collectives so far, by group
};

}  // namespace telens::features
