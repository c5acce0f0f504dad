// The histograms of a run: what telens.ValueHistogram recorded.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "features/record/run_reader.h"
#include "features/statistics/from_histogram.h"
#include "inspector_cli/selection.h"

namespace telens::cli {

struct TensorKey {
  std::int32_t layer = record::kNoName;
  std::int32_t tensor = record::kNoName;
  friend auto operator<=>(const TensorKey&, const TensorKey&) = default;
};

// The selection's histograms, of whichever kind. UsageError, which names the run's path, if it has
// none at all.
record::RecordQuery histogram_query(const Selection& selection, const record::RunReader& run,
                                    const std::string& path);

using UseHistogram =
    std::function<void(const TensorKey& key, std::int64_t iteration, const Histogram& histogram)>;
// Those of one tensor and iteration come once for each rank, and for each part of the iteration.
void for_each_histogram(const record::RunReader& run, const record::RecordQuery& query,
                        const UseHistogram& use);

}  // namespace telens::cli
