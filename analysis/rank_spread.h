// How the ranks of a run differ in what they recorded: each rank beside the median of all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "analysis/records.h"
#include "record/run_reader.h"

namespace telens::analysis {

// One statistic of one tensor on one rank.
struct RankCourse {
  SeriesKey key;
  int rank = 0;
  std::int64_t records = 0;
  std::int64_t nonfinite = 0;  // records whose value is no finite number
  double lowest = 0;           // this and what follows: without those
  double highest = 0;
  double mean = 0;
  std::optional<double> median_of_ranks;  // nothing: no rank has a finite value
  bool of_two = false;                    // two ranks have recorded it, finite or not
  // Distance from the median of all ranks' means, in robust standard deviations: the modified
  // z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993), (mean - median) /
  // (1.4826 MAD), or / (1.2533 mean absolute deviation) where more than half of the ranks are
  // equal. 0 of one rank, and nothing of two, of which none is the outlier.
  std::optional<double> deviation = 0;
  // The mean less that of the other, where there are two ranks.
  std::optional<double> difference = std::nullopt;
  double apart = 0;  // how far from the others, in deviations; of two ranks the relative difference
  bool alone_not_finite = false;  // most ranks have only finite values of it, this one has not
};

class RankSpread {
 public:
  // Throws UsageError where there are more series than there is memory for.
  void add(int rank, std::span<const record::Record> records);
  // Those with values that are not finite where most have none, then those farthest from the
  // median; behind them what two ranks have, by their distance in relation to the larger, which is
  // no deviation; then by name and rank.
  std::vector<RankCourse> outliers_first() const;

 private:
  struct Values {
    std::int64_t records = 0;
    std::int64_t finite = 0;
    double lowest = 0;
    double highest = 0;
    double mean = 0;
    void add(double value);
  };

  std::unordered_map<SeriesKey, std::map<int, Values>, SeriesHash> series_;
  std::size_t courses_ = 0;
};

// Reads the query and returns its courses, outliers first.
std::vector<RankCourse> list_rank_courses(const record::RunReader& run,
                                          const record::RecordQuery& query);

}  // namespace telens::analysis
