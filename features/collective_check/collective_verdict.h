// Judges a collective: it has to bring this rank what all of its ranks sent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "features/collective_check/collective_words.h"

namespace telens::features {

class CollectiveVerdict {
 public:
  // own: has a result, on the host. told: what all ranks say of it. Both live longer.
  CollectiveVerdict(const SeenCollective& own, std::span<const ToldCollective> told);

  // A sentence without a period; nullopt: nothing is wrong, or not all of its ranks tell.
  std::optional<std::string> text() const;

  // Elements that were NaN or infinite on a rank and did not come out.
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
