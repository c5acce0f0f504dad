// The requests of several features for one tensor, merged: each cast and each block shape is
// measured once, however many statistics and features want it. No LibTorch.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "core/formats/format_id.h"
#include "hooks/statistics/accumulator.h"
#include "hooks/statistics/statistic_name.h"

namespace telens {

// A cast whose effect is measured: with whose scales, and to which format.
struct CastRequest {
  RecipeId recipe = RecipeId::fp8_current_scaling;
  FormatId format = FormatId::e4m3;
  bool columnwise = false;  // under a block recipe: the copy with blocks along columns
  bool altered = false;     // by a feature: under the scale of its codes, not the recipe's

  friend bool operator==(const CastRequest&, const CastRequest&) = default;
};

// The recipe under which a layer runs, as one of its tensors shows it.
struct RunningCast {
  RecipeId recipe = RecipeId::fp8_current_scaling;
  FormatId format = FormatId::e4m3;
  // The copies that feed a GEMM; under a recipe with one scale a tensor they have the same values.
  bool rowwise = true;
  bool columnwise = true;
  // True if a feature quantized in the recipe's place, under one scale of its own; then its format.
  bool altered = false;
  FormatId altered_format = FormatId::e4m3;
};

// A statistic with the place where its value will lie: indices into RequestSet's casts, block
// casts and blocks.
struct StatisticRequest {
  StatisticName name;
  std::optional<std::size_t> cast = std::nullopt;  // index into casts, with one scale a tensor
  std::optional<std::size_t> block_cast = std::nullopt;  // index into casts with a scale a block
  std::optional<std::size_t> blocks = std::nullopt;   // set for max_blockwise_dynamic_range alone
  std::optional<std::size_t> defined = std::nullopt;  // set for those of plugins and programs

  bool is_of_cast() const { return cast || block_cast; }

  friend bool operator==(const StatisticRequest&, const StatisticRequest&) = default;
};

// The cast that a statistic is about; nullopt for a statistic of none, and where the cast does not
// take place (RequestSet::add).
std::optional<CastRequest> requested_cast(const StatisticName& name,
                                          const std::optional<RunningCast>& running);

class RequestSet {
 public:
  // running: nullopt where the layer runs unquantized. A what-if recipe takes the running FP8
  // format, else E4M3, one in FP4 always E2M1. Of a block recipe the rowwise copy is measured, but
  // the columnwise one where the name says so or where no rowwise one runs. Returns the request as
  // it stands in the set (an equal one is not added twice), or nullopt where the statistic has no
  // meaning now: one of the running recipe while there is none, delayed scaling while it does not
  // run, a columnwise copy that does not run, or whose recipe has one scale for all of the tensor,
  // and one of the tensor's scale where blocks have scales of their own.
  std::optional<StatisticRequest> add(const StatisticName& name,
                                      const std::optional<RunningCast>& running);

  // In the order of the `scales` and `formats` that the operator statistics takes.
  const std::vector<CastRequest>& casts() const { return casts_; }
  // Casts with a scale a block.
  const std::vector<CastRequest>& block_casts() const { return block_casts_; }
  const std::vector<BlockShape>& blocks() const { return blocks_; }
  // Statistics of plugins and programs: each reads the tensor on its own.
  const std::vector<StatisticId>& defined() const { return defined_; }
  const std::vector<StatisticRequest>& requests() const { return requests_; }
  // Index of the running recipe's cast, if scale statistics were requested.
  std::optional<std::size_t> scale_cast() const { return scale_cast_; }
  // A statistic was requested that is made from TensorSums::moments.
  bool moments() const;
  bool empty() const { return requests_.empty(); }

  // Results of equal sets may be merged.
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
