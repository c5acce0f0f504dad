// Exchanges between ranks: merges sums with equal keys over a group, agrees on the tensor-parallel
// groups over which statistics of weights are reduced, and compares items that must be equal. No
// LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tensor_handle.h"
#include "hooks/engine/statistics_totals.h"
#include "hooks/rank_group.h"

namespace telens::features {

struct SharedSums {
  std::uint64_t key;  // a hash of tensor and SumsKey, unique within a rank
  AnySums* sums;      // in: the sums of this rank; out: the sums of the group
};

// Clears this rank's sums, so that it contributes nothing and still receives the sums of the group.
void bring_nothing(AnySums& sums);

// Merges sums with equal keys over the ranks of the group, in rank order, so that all ranks compute
// the same bits. Every rank must call this; ranks may contribute different keys or none. `note`:
// words to send with the header, equally many on every rank. Returns the notes of every rank.
//
// The first gather sends headers: hash of the keys, sizes and note. It also contains keys and sums
// if they fit into the size of the longest of the group's last 8 exchanges. Otherwise a second
// gather sends the sums, with the keys if the hashes differ.
using Notes = std::vector<std::int64_t>;
std::vector<Notes> merge_over_ranks(std::span<const SharedSums> own, RankGroup& group,
                                    const Notes& note = {});

// Returns a hash that is equal on all machines.
std::int64_t compute_hash(std::string_view text);

// Groups by name. A group's name is equal on all of its ranks.
using Groups = std::map<std::string, RankGroupPtr>;

// The tensor-parallel groups over which statistics of weights are reduced.
//
// A rank discovers a group when a layer runs. The layers of other ranks may not run in that
// iteration, and a gather that only some ranks of a group call would block forever. Therefore a
// group is only used after all of its ranks have discovered it. Ranks send a hash of their groups
// in a header that is exchanged anyway (the note). They exchange the names only if a note has
// changed.
class WeightGroups {
 public:
  // Adds the group of an observed weight. Any thread.
  void add(const RankGroupPtr& group);

  // Returns the note of this rank. If `shares` is false, weights stay local: the note contains no
  // group, so that no group of this rank is complete.
  std::int64_t note(bool shares = true);

  // Returns the complete groups: all of their ranks have discovered them. `notes`: the notes of all
  // ranks of the world, which must all call this. A rank that receives the name of a group that it
  // belongs to finds the group with RankGroup::find.
  const Groups& agree(std::vector<std::int64_t> notes, RankGroup& world);

 private:
  Groups complete_groups(std::span<const std::string> texts);
  void look_up(std::span<const std::string> texts, RankGroup& world);

  std::mutex mutex_;  // guards known_
  Groups known_;
  bool shares_ = true;               // as of the last note()
  std::string own_text_;             // serialized known_, as of the last note()
  std::vector<std::int64_t> notes_;  // the notes from which agreed_ was computed
  Groups agreed_;
};

// ---- items that must be equal on several ranks; each rank sends its items as 64-bit words

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
