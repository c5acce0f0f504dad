// Differences between the ranks of a run: each rank compared with the median over ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/series.h"
#include "record/run_reader.h"

namespace telens::analysis {

// A statistic of a tensor on one rank.
struct RankStatistic {
  SeriesKey key;
  int rank = 0;
  std::int64_t records = 0;
  std::int64_t nonfinite = 0;  // records with a non-finite value
  double lowest = 0;           // of the finite values, like `highest` and `mean`
  double highest = 0;
  double mean = 0;
  std::optional<double> median_of_ranks;  // nullopt if no rank has a finite value
  bool of_two = false;                    // exactly two ranks recorded it, finite or not
  // Distance from the median over the ranks' means in robust standard deviations: the modified
  // z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993), (mean - median) /
  // (1.4826 MAD), or / (1.2533 mean absolute deviation) if more than half of the ranks are equal. 0
  // for a single rank; nullopt for two ranks, because neither is the outlier.
  std::optional<double> deviation = 0;
  // With two ranks, the mean minus the mean of the other rank.
  std::optional<double> difference = std::nullopt;
  double apart = 0;               // |deviation|; with two ranks, their relative difference
  bool alone_not_finite = false;  // true if most ranks have only finite values, unlike this one
};

// Reads the query. Sorted: first series with non-finite values that most ranks do not have, then by
// distance from the median, then series of two ranks by relative difference, then by name and rank.
// Throws UsageError if there are too many series for the memory limit.
std::vector<RankStatistic> list_rank_statistics(const record::RunReader& run,
                                                const record::RecordQuery& query);

}  // namespace telens::analysis
