// Compares items that must be equal on several ranks. Each rank sends its items as 64-bit words. No
// LibTorch.
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

// The part of a tensor that every rank has whole. A part is a hash; an item must be equal on all
// ranks with the same part.
inline constexpr std::uint64_t kWhole = 0;

// Returns the part of rank `rank` if a tensor is divided among `size` ranks.
std::uint64_t select_part(std::int64_t rank, std::int64_t size);
// Returns the part of tensors that must be equal only within this group.
std::uint64_t part_of_group(const RankGroup& group);

struct ItemName {
  std::string layer;
  std::string tensor;
  std::string_view what;  // a string literal: "weight", "scale", ...
};

// An item of this rank with a difference between the ranks of its part.
struct Difference {
  std::size_t item;      // index of the item
  std::vector<int> odd;  // ranks that differ from the majority
  int usual;             // a rank of the majority
};

// The result for one item of this rank.
struct Compared {
  bool has_peers = false;  // another rank has the same part
  // True if this rank differs from the majority. Of two ranks, the second differs.
  bool is_odd = false;
};

class ComparedItems {
 public:
  // Adds an item. `digest`: int64 [2] on any device, in memory that is not reused. The values of an
  // item that is added several times (micro-batches) are combined.
  void add(ItemName name, std::uint64_t part, const TensorHandle& digest);
  bool empty() const { return items_.empty(); }
  void clear();

  // Returns the words of every item. Copies the digests to the host and waits for them.
  RankWords words();

  const ItemName& name(std::size_t item) const { return items_[item].name; }
  // Returns the first word of an item's digest in `of_rank`, which must contain the item.
  std::int64_t first_word(std::size_t item, std::span<const std::int64_t> of_rank) const;

  // Returns the differing items. `of_ranks`: words() of every rank. `compared` receives one entry
  // per item, in the order of add().
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
