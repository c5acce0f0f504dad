// The statistics of TELens, a row each, and the values that rows make of sums. The configuration,
// the engine, ranks, the command and the docs take all that they know of a statistic from its row.
// No LibTorch.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops/attention_statistics_layout.h"
#include "core/ops/statistics_layout.h"
#include "hooks/config/statistic_description.h"
#include "hooks/statistics/scale_sums.h"

namespace telens {

using config::StatisticId;
using config::StatisticKind;
using config::StatisticSource;

// In the order of the documentation. The order carries no other meaning: files store names.
std::span<const config::StatisticDescription> builtin_statistics();

// The row of a built-in statistic, "std" or "underflows%".
StatisticId find_statistic(std::string_view name);  // nullptr: there is none
StatisticId statistic(std::string_view name);       // throws InternalError if there is none

// The rows of a source.
std::vector<StatisticId> statistics_from(StatisticSource source);
// Its counters, for a tensor or a cast.
const std::vector<StatisticId>& counters_from(StatisticSource source);

std::vector<std::string> get_names(std::span<const StatisticId> statistics);

// Each throws InternalError for a statistic of another source. A tensor without elements has counts
// of 0, all else is NaN, and no value of a scale; no value of an attention none of whose queries
// chooses, or that has none.
double finish(StatisticId statistic, const TensorSums& sums);
double finish(StatisticId statistic, const CastSums& sums);
std::optional<double> finish(StatisticId statistic, const ScaleSums& sums);
double finish(StatisticId statistic, const BlockRanges& ranges);
std::optional<double> finish(StatisticId statistic, const ScoreSums& sums);

// max |x|; NaN if any element is NaN.
double amax(const TensorSums& sums);

}  // namespace telens
