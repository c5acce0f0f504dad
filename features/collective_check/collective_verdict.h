// Judges a collective: this rank must receive the data that all ranks in the collective sent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "features/collective_check/seen_collectives.h"

namespace telens::features {

class CollectiveVerdict {
 public:
  // own: has a result, on the host. told: the reports from all ranks about this collective. Both
  // must outlive this object.
  CollectiveVerdict(const SeenCollective& own, std::span<const ToldCollective> told);

  // Returns a sentence without a period; nullopt if nothing is wrong, or if some of its ranks do
  // not report it.
  std::optional<std::string> text() const;

  // Returns the number of elements that were NaN or infinite on a rank but not in the result.
  std::int64_t lost_elements() const;

 private:
  using Words = std::span<const std::int64_t>;
  struct Peer {
    int world_rank;
    Words words;
    CollectiveSums sent;
    CollectiveSums result;
    bool ended;
  };

  bool all_tell() const;
  std::optional<std::string> another_collective() const;
  std::optional<std::string> wrong_gather() const;
  std::optional<std::string> wrong_exchange() const;
  std::optional<std::string> wrong_element() const;
  std::optional<std::string> wrong_total() const;
  double nonfinite_that_came() const;
  const Peer& with_most_nonfinite() const;

  const SeenCollective& own_;
  std::vector<Peer> peers_;
  CollectiveSums result_;
};

}  // namespace telens::features
