// The collectives of an iteration as observed by this rank, the words that represent them on other
// ranks, and the verdict on each: this rank must receive the data that all ranks sent.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/base/collective_kind.h"
#include "core/base/tensor_handle.h"
#include "core/ops/collective_sums_layout.h"
#include "hooks/rank_checker.h"
#include "hooks/rank_group.h"

namespace telens::features {

// Returns the sums of a collective's input or output tensor. on_host: from
// tensor_ops::collective_sums.
CollectiveSums read_sums(const TensorHandle& on_host);

// Returns the bound on the error of a sum of `ranks` numbers of this dtype, added in any order, if
// their magnitudes add up to `magnitude`: gamma_n = n u / (1 - n u), Higham, "Accuracy and
// Stability of Numerical Algorithms" (2002), 4.2. Infinite if the formula gives no bound.
double summation_bound(DType dtype, std::int64_t ranks, double magnitude);

// The place under which a collective is recorded.
struct CollectivePlace {
  std::string layer;
  std::string tensor;
  bool operator<(const CollectivePlace& other) const {
    return std::tie(layer, tensor) < std::tie(other.layer, other.tensor);
  }
};

// A collective as observed by this rank.
struct SeenCollective {
  CollectivePlace place;
  CollectiveKind kind;
  std::uint64_t key;   // the group, and the number of the collective in it
  std::int64_t shape;  // a hash of kind, dtype and sizes
  std::string title;
  DType dtype;
  std::int64_t ranks, rank, numel;
  TensorHandle sent;    // collective_sums, a gather's digest or exchange_words
  TensorHandle result;  // like `sent`; for a gather, [ranks, 2]; undefined if it did not end
  std::vector<std::int64_t> received = {};  // rows from each rank, if rows are sent

  // Returns true if bits are copied instead of added.
  bool copies() const { return kind == CollectiveKind::gather || sends_rows(kind); }
};

// The elements of the whole tensor that form a rank's result.
struct ElementRange {
  std::int64_t first, size;
  bool contains(std::int64_t element) const { return element >= first && element < first + size; }
};

inline ElementRange result_range(const SeenCollective& seen) {
  if (seen.kind != CollectiveKind::sum_and_scatter) return {0, seen.numel};
  const std::int64_t size = seen.numel / seen.ranks;
  return {seen.rank * size, size};
}

// The words that represent a collective: key, shape, rank in its group, the sums of the sent data
// (for a gather the two words of its digest, for an exchange its words), the sums of the result,
// and whether there is a result.
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
struct ReportedCollective {
  int world_rank;
  std::span<const std::int64_t> words;  // kWords of them
};

// Collectives of this rank, by key, as reported by all ranks: each row of their words is read once.
// The words must outlive this object.
class ReportedCollectives {
 public:
  ReportedCollectives(std::span<const SeenCollective> own, std::span<const RankWords> of_ranks);

  // In the order of world ranks; empty for a collective that is not among `own`.
  std::span<const ReportedCollective> of(std::uint64_t key) const;

 private:
  std::unordered_map<std::uint64_t, std::vector<ReportedCollective>> by_key_;
};

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

class CollectiveVerdict {
 public:
  // own: has a result, on the host. reported: the reports from all ranks about this collective.
  // Both must outlive this object.
  CollectiveVerdict(const SeenCollective& own, std::span<const ReportedCollective> reported);

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

  bool all_report() const;
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
