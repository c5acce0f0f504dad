// What several features ask of one tensor, merged: each cast and each block shape is measured
// once, however many statistics and features want it. No LibTorch.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "core/formats/format_id.h"
#include "features/statistics/accumulator.h"
#include "features/statistics/statistic_name.h"

namespace telens {

// A per-tensor cast whose effect is measured: whose scale, and to which FP8 format.
struct CastRequest {
  RecipeId recipe = RecipeId::fp8_current_scaling;
  FormatId format = FormatId::e4m3;

  friend bool operator==(const CastRequest&, const CastRequest&) = default;
};

// A statistic with the place where its value will lie: indices into RequestSet's casts and blocks.
struct StatisticRequest {
  StatisticName name;
  std::optional<std::size_t> cast = std::nullopt;    // of cast statistics alone
  std::optional<std::size_t> blocks = std::nullopt;  // of max_blockwise_dynamic_range alone

  friend bool operator==(const StatisticRequest&, const StatisticRequest&) = default;
};

class RequestSet {
 public:
  // running: the recipe under which the layer runs and its format for this tensor; nullopt where
  // the layer runs unquantized. A what-if recipe takes the running format, else E4M3. Returns the
  // request as it stands in the set (an equal one is not added twice), or nullopt where the
  // statistic has no meaning now: one of the running recipe while there is none, or delayed scaling
  // while it does not run. Throws UsageError for recipes with block scales, which are no casts with
  // one scale.
  std::optional<StatisticRequest> add(const StatisticName& name,
                                      const std::optional<CastRequest>& running);

  // In the order of the `scales` and `formats` that the operator statistics takes.
  const std::vector<CastRequest>& casts() const { return casts_; }
  const std::vector<BlockShape>& blocks() const { return blocks_; }
  const std::vector<StatisticRequest>& requests() const { return requests_; }
  bool empty() const { return requests_.empty(); }

  // Results of equal sets may be merged.
  friend bool operator==(const RequestSet&, const RequestSet&) = default;

 private:
  std::vector<CastRequest> casts_;
  std::vector<BlockShape> blocks_;
  std::vector<StatisticRequest> requests_;
};

// What the reads of one tensor gave for a RequestSet, since the last step and over its ranks.
struct TensorResults {
  explicit TensorResults(const RequestSet& set)
      : sums(set.casts().size()), ranges(set.blocks().size()) {}

  // In front the words of sums, then those of ranges.
  void add_words(std::span<const std::int64_t> words);

  StatisticsAccumulator sums;
  std::vector<BlockRanges> ranges;
};

}  // namespace telens
