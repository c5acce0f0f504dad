// The sums of a tensor in one iteration on the host, merged over micro-batches and ranks. No
// LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "core/ops/statistics_layout.h"
#include "hooks/engine/defined_statistics.h"
#include "hooks/statistics/requests.h"
#include "hooks/statistics/scales.h"

namespace telens::features {

using AnySums = std::variant<TensorSums, CastSums, BlockRanges, ScaleSums, DefinedSums, ScoreSums>;

// Identifies sums within a tensor. Keys with equal hashes are treated as equal across ranks.
struct SumsKey {
  StatisticSource source = StatisticSource::tensor;
  CastRequest cast = {};            // set for sums of a cast, and of its scale
  BlockShape blocks = {};           // set for sums of blocks
  StatisticId statistic = nullptr;  // set for a plugin's statistic

  friend bool operator==(const SumsKey&, const SumsKey&) = default;

  // Returns a hash that is equal on all machines.
  std::uint64_t hash() const;
};

// All sums of a tensor. Sums of the tensor itself cover all micro-batches; sums of casts and blocks
// cover the micro-batches in which a feature requested them.
class Totals {
 public:
  struct Slot {
    SumsKey key;
    AnySums sums;
  };

  Totals() : slots_{{SumsKey{}, TensorSums{}}} {}

  // Returns the sums of the key. Adds `of_nothing` if the key is new.
  template <typename Sums>
  Sums& find_or_add(const SumsKey& key, Sums of_nothing = {}) {
    for (Slot& slot : slots_) {
      if (slot.key == key) return std::get<Sums>(slot.sums);
    }
    return std::get<Sums>(slots_.emplace_back(key, std::move(of_nothing)).sums);
  }

  bool empty() const { return tensor().numel == 0; }
  const TensorSums& tensor() const { return std::get<TensorSums>(slots_.front().sums); }

  // Returns the value of a request. The sums of its `set` must have been added. Returns nullopt if
  // the value is undefined for these reads.
  std::optional<double> value(const StatisticRequest& request, const RequestSet& set) const;

  std::vector<Slot>& slots() { return slots_; }

 private:
  std::vector<Slot> slots_;  // the first slot has the sums of the tensor itself
};

}  // namespace telens::features
