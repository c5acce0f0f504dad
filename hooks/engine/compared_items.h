// Items that must be equal on several ranks: one rank's items as words, and the differences between
// the words of all ranks. No LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tensor_handle.h"
#include "hooks/rank_group.h"

namespace telens::features {

// An item must be equal on all ranks that name the same part, given as a hash.
inline constexpr std::uint64_t kWhole = 0;

// Returns the part of rank `rank` of the `size` ranks that a tensor is divided among.
std::uint64_t select_part(std::int64_t rank, std::int64_t size);
// Returns the part that only the ranks of this group have.
std::uint64_t part_of_group(const RankGroup& group);

struct ItemName {
  std::string layer;
  std::string tensor;
  std::string_view what;  // a literal: "weight", "scale", ...
};

// An item of this rank that differs between the ranks of its part.
struct Difference {
  std::size_t item;      // its index
  std::vector<int> odd;  // ranks that differ from the majority
  int usual;             // a rank of the majority
};

// The outcome of a comparison, for each item of this rank in the order in which they were added.
struct Compared {
  bool has_peers = false;
  // This rank differs from the majority; with two ranks, from the first.
  bool is_odd = false;
};

class ComparedItems {
 public:
  // digest: int64 [2], on any device, in separate memory. If an item is added again in the same
  // iteration (micro-batches), all of its values are compared together.
  void add(ItemName name, std::uint64_t part, const TensorHandle& digest);
  bool empty() const { return items_.empty(); }
  void clear();

  // Copies the digests to the host and returns the words of all items. Waits.
  RankWords words();

  const ItemName& name(std::size_t item) const { return items_[item].name; }
  // Returns the first word of an item's digest on a rank that has the item.
  std::int64_t first_word(std::size_t item, std::span<const std::int64_t> of_rank) const;

  // of_ranks: the words of all ranks, from words(). `compared` receives an entry for each item.
  std::vector<Difference> differences(std::span<const RankWords> of_ranks, int own_rank,
                                      std::vector<Compared>& compared) const;

 private:
  struct Item {
    ItemName name;
    std::uint64_t key;
    std::uint64_t part;
    TensorHandle digest;
  };
  std::vector<Item> items_;
  std::map<std::uint64_t, std::size_t> by_key_;
};

}  // namespace telens::features
