// The requests of several features for a tensor, merged: each cast and each block shape is measured
// once, for any number of statistics and features. No LibTorch.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "core/formats/format_id.h"
#include "hooks/statistics/accumulator.h"
#include "hooks/statistics/statistic_name.h"

namespace telens {

// A measured cast: the recipe whose scales it uses, and its format.
struct CastRequest {
  RecipeId recipe = RecipeId::fp8_current_scaling;
  FormatId format = FormatId::e4m3;
  bool columnwise = false;  // for a block recipe: the copy with blocks along columns
  bool altered = false;     // a feature changed it: use the scale of its codes, not the recipe's

  friend bool operator==(const CastRequest&, const CastRequest&) = default;
};

// The recipe of a running layer, as applied to one tensor.
struct RunningCast {
  RecipeId recipe = RecipeId::fp8_current_scaling;
  FormatId format = FormatId::e4m3;
  // The copies that GEMMs use. With per-tensor scales both have the same values.
  bool rowwise = true;
  bool columnwise = true;
  // True if a feature quantized instead of the recipe, with a per-tensor scale and this format.
  bool altered = false;
  FormatId altered_format = FormatId::e4m3;
};

// A statistic with the location of its value: indices into RequestSet's casts, block casts and
// blocks.
struct StatisticRequest {
  StatisticName name;
  std::optional<std::size_t> cast = std::nullopt;        // index into casts, for per-tensor scales
  std::optional<std::size_t> block_cast = std::nullopt;  // index into block casts, for block scales
  std::optional<std::size_t> blocks = std::nullopt;      // only set for max_blockwise_dynamic_range
  std::optional<std::size_t> defined = std::nullopt;     // only set for plugins' statistics

  bool is_of_cast() const { return cast || block_cast; }

  friend bool operator==(const StatisticRequest&, const StatisticRequest&) = default;
};

// Returns the cast of a statistic; nullopt if the statistic has none, or if the cast does not take
// place (RequestSet::add).
std::optional<CastRequest> requested_cast(const StatisticName& name,
                                          const std::optional<RunningCast>& running);

class RequestSet {
 public:
  // running: nullopt if the layer runs unquantized. A what-if recipe uses the running FP8 format,
  // or E4M3 if there is none; an FP4 recipe always uses E2M1. For a block recipe the rowwise copy
  // is measured, unless the name selects the columnwise one or no rowwise copy is used.
  //
  // Returns the request in the set (an equal request is not added twice). Returns nullopt if the
  // statistic is currently undefined:
  // - a statistic of the running recipe, and none is running;
  // - delayed scaling, and it is not running;
  // - a columnwise copy that is not used, or whose recipe has a per-tensor scale;
  // - a statistic of the per-tensor scale, and the recipe has block scales.
  std::optional<StatisticRequest> add(const StatisticName& name,
                                      const std::optional<RunningCast>& running);

  // In the order of the operator's arguments `scales` and `formats`.
  const std::vector<CastRequest>& casts() const { return casts_; }
  // Casts with block scales.
  const std::vector<CastRequest>& block_casts() const { return block_casts_; }
  const std::vector<BlockShape>& blocks() const { return blocks_; }
  // Statistics of plugins and programs: each reads the tensor separately.
  const std::vector<StatisticId>& defined() const { return defined_; }
  const std::vector<StatisticRequest>& requests() const { return requests_; }
  // Index of the running recipe's cast, if scale statistics were requested.
  std::optional<std::size_t> scale_cast() const { return scale_cast_; }
  // Returns true if a requested statistic needs TensorSums::moments.
  bool moments() const;
  bool empty() const { return requests_.empty(); }

  // Results of equal sets can be merged.
  friend bool operator==(const RequestSet&, const RequestSet&) = default;

 private:
  std::vector<CastRequest> casts_;
  std::vector<CastRequest> block_casts_;
  std::vector<BlockShape> blocks_;
  std::vector<StatisticId> defined_;
  std::vector<StatisticRequest> requests_;
  std::optional<std::size_t> scale_cast_;
};

}  // namespace telens
