// Items that ranks have to have alike: what one rank has as words, and what differs among the words
// of all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/gather_over_ranks.h"

namespace telens::features {

// The ranks that have to have an item alike are those that name the same part, as a hash.
inline constexpr std::uint64_t kWhole = 0;

// The part of rank `rank` of `size` that a tensor is divided among.
std::uint64_t select_part(std::int64_t rank, std::int64_t size);
// The part that the ranks of one group have, and no other ranks.
std::uint64_t part_of_group(c10d::ProcessGroup& group);

struct ItemName {
  std::string layer;
  std::string tensor;
  std::string_view what;  // a literal: "weight", "scale", ...
};

// An item of this rank that differs from what others of its part have.
struct Difference {
  std::size_t item;      // its number
  std::vector<int> odd;  // ranks that differ from most
  int usual;             // a rank that has what most have
};

// The outcome of a comparison, for each item of this rank in the order in which they were added.
struct Compared {
  bool has_peers = false;
  bool is_odd = false;  // this rank's differs from what most have; of two ranks, from the first's
};

class ComparedItems {
 public:
  // digest: int64 [2], on any device, its own memory. An item that is added again in the same
  // iteration (micro-batches) is compared with all its values together.
  void add(ItemName name, std::uint64_t part, at::Tensor digest);
  bool empty() const { return items_.empty(); }
  void clear();

  // Brings the digests to the host.
  RankWords words();

  const ItemName& name(std::size_t item) const { return items_[item].name; }
  // The first word of an item's digest on a rank that has it.
  std::int64_t first_word(std::size_t item, std::span<const std::int64_t> of_rank) const;

  // The words of all ranks, from words(). `compared` gets an entry for each item.
  std::vector<Difference> differences(std::span<const RankWords> of_ranks, int own_rank,
                                      std::vector<Compared>& compared) const;

 private:
  struct Item {
    ItemName name;
    std::uint64_t key;
    std::uint64_t part;
    at::Tensor digest;
  };
  std::vector<Item> items_;
  std::map<std::uint64_t, std::size_t> by_key_;
};

}  // namespace telens::features
