// A collective as observed by this rank.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/collective_kind.h"
#include "features/collective_check/collective_sums.h"

namespace telens::features {

// The place under which a collective is recorded.
struct CollectivePlace {
  std::string layer;
  std::string tensor;
  bool operator<(const CollectivePlace& other) const {
    return std::tie(layer, tensor) < std::tie(other.layer, other.tensor);
  }
};

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

}  // namespace telens::features
