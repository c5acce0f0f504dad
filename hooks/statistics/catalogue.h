// The statistics of TELens, one row each, and the values that rows compute from sums. The
// configuration, the engine, ranks, the command and the docs take everything about a statistic from
// its row. No LibTorch.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops/statistics_layout.h"
#include "hooks/config/statistic_description.h"
#include "hooks/statistics/scales.h"

namespace telens {

using config::StatisticId;
using config::StatisticKind;
using config::StatisticSource;

// In the order of the documentation. Nothing else depends on the order: files store names.
std::span<const config::StatisticDescription> builtin_statistics();

// The row of a built-in statistic, "std" or "underflows%".
StatisticId find_statistic(std::string_view name);  // nullptr if there is none
StatisticId statistic(std::string_view name);       // throws InternalError if there is none

// Returns the rows of a source.
std::vector<StatisticId> statistics_from(StatisticSource source);
// Returns the counters of a source, which is a tensor or a cast.
const std::vector<StatisticId>& counters_from(StatisticSource source);

std::vector<std::string> get_names(std::span<const StatisticId> statistics);

// Throw InternalError for a statistic of another source. For a tensor without elements, counts are
// 0, a scale has no value, and everything else is NaN. An attention has no value if none of its
// rows is `choosing` (core/ops/statistics_layout.h), or if it has no rows.
double finish(StatisticId statistic, const TensorSums& sums);
double finish(StatisticId statistic, const CastSums& sums);
std::optional<double> finish(StatisticId statistic, const ScaleSums& sums);
double finish(StatisticId statistic, const BlockRanges& ranges);
std::optional<double> finish(StatisticId statistic, const ScoreSums& sums);

// max |x|; NaN if any element is NaN.
double amax(const TensorSums& sums);

}  // namespace telens
