// Groups of ranks that exchange bytes, and the groups over which statistics are reduced. No
// LibTorch: hooks/libtorch/c10d_group.h implements RankGroup with a c10d::ProcessGroup.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace c10d {
class ProcessGroup;
}

namespace telens {

// A store of keys that all ranks of a group read and write. Each call has the store's time limit
// and throws if it expires.
class TELENS_EXPORT RankStore {
 public:
  virtual ~RankStore() = default;

  // Returns false if the store lacks add() or set_if_missing(), so that ranks cannot decide by it.
  // Throws if the store cannot be reached.
  virtual bool can_decide() = 0;

  virtual bool has(const std::string& key) = 0;
  // Waits until a rank has set the key.
  virtual std::string get(const std::string& key) = 0;
  virtual void set(const std::string& key, std::string_view value) = 0;
  virtual void remove(const std::string& key) = 0;

  // These are atomic. add() counts from 0 and returns the sum.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  virtual void set_if_missing(const std::string& key, std::string_view value) = 0;

  // Returns a function that returns the store if another owner still keeps it alive, else null.
  using WeakStore = std::function<std::shared_ptr<RankStore>()>;
  virtual WeakStore get_weak() = 0;
};

class RankGroup;
using RankGroupPtr = std::shared_ptr<RankGroup>;

// A group of ranks, as one of its ranks sees it.
class TELENS_EXPORT RankGroup {
 public:
  virtual ~RankGroup() = default;

  // This process's rank in the group, from 0, and the number of ranks.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The name under which all ranks of the group know it. Groups split from a larger one may share a
  // name.
  virtual std::string name() const = 0;
  // A text for users; "" if it has none.
  virtual std::string description() const { return {}; }
  // The ranks of the world in the group, as "0,2"; "-" if they are not known. The same text on all
  // of its ranks.
  virtual std::string members() const { return "-"; }
  // Distinguishes groups that share a name.
  std::string identity() const { return members() + ' ' + name(); }

  // Gathers the bytes of every rank into `all`, in rank order. Every rank has to call it with
  // equally many bytes; `all` has size() times as many. Throws if a rank does not arrive in time.
  virtual void gather(std::span<const std::byte> own, std::span<std::byte> all) = 0;

  // Returns the store that the ranks share; null if there is none.
  virtual std::shared_ptr<RankStore> store() { return nullptr; }

  // Returns the shorter time limit of gather() and of the store's calls; 0 if there is no limit.
  virtual std::chrono::milliseconds time_limit() const { return std::chrono::milliseconds::zero(); }
  // Returns how long a rank waits for another one that may already be in gather(), which must not
  // time out: half of the limit, at most five minutes.
  std::chrono::milliseconds longest_wait() const;

  // Returns the group of this process with that name; null if it has none.
  virtual RankGroupPtr find(const std::string& name) { return nullptr; }

  // The sizes of the group's last exchanges of sums (hooks/engine/rank_exchange.h). They live as
  // long as the group exists, because all of its ranks must see the same ones.
  virtual std::deque<std::size_t>& exchange_sizes() = 0;
};

// Gathers every rank's words, in rank order; all ranks send the same number of words.
using RankWords = std::vector<std::int64_t>;
TELENS_EXPORT std::vector<RankWords> gather_words(const RankWords& words, RankGroup& group);
// Gathers every rank's note or text, in rank order. Texts may have any length.
TELENS_EXPORT std::vector<std::int64_t> gather_notes(std::int64_t note, RankGroup& group);
TELENS_EXPORT std::vector<std::string> gather_texts(std::string_view text, RankGroup& group);

namespace debug {

// A group as programs pass it: a RankGroup, or a c10d::ProcessGroup, whose ownership it shares.
// Null if there is only this rank.
class TELENS_EXPORT ReductionGroup : public RankGroupPtr {
 public:
  using RankGroupPtr::shared_ptr;
  ReductionGroup() = default;
  ReductionGroup(RankGroupPtr group) : RankGroupPtr(std::move(group)) {}  // NOLINT
  // Defined in hooks/libtorch/c10d_group.cpp.
  ReductionGroup(const std::shared_ptr<c10d::ProcessGroup>& group);  // NOLINT
};

}  // namespace debug

TELENS_EXPORT bool has_several_ranks(const RankGroupPtr& group);

// Returns a group's readable name; "" for null and for a single-rank group, over which nothing is
// reduced.
TELENS_EXPORT std::string get_name(const RankGroupPtr& group);

// The groups over which one step reduces statistics.
struct Reductions {
  using OfLayers = std::map<std::string, RankGroupPtr, std::less<>>;

  // The group that contains all ranks, which agree on the groups of weights; null if there is only
  // this rank.
  RankGroupPtr world = {};
  // The group of activations, gradients and outputs; null if they stay local to this rank.
  RankGroupPtr tensors = {};
  OfLayers tensors_of_layers = {};  // overrides `tensors` for these layers
  // If true, weights are reduced over the tensor-parallel group of their layer; if false, they stay
  // local to this rank.
  bool weights = false;
  // True if this step reduces, for `tensors` and for `weights`. The same on every rank.
  bool tensors_are_due = false;
  bool weights_are_due = false;
  // The decisions of this rank (hooks/decisions.h); the same number on every rank, and due on all
  // of them.
  std::vector<std::int64_t> decisions = {};
  bool decisions_are_due = false;
};

}  // namespace telens
