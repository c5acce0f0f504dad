// The histograms of a run: what telens.ValueHistogram recorded.
#pragma once

#include <cstdint>
#include <functional>

#include "hooks/statistics/from_histogram.h"
#include "record/run_reader.h"

namespace telens::cli {

struct TensorKey {
  std::int32_t layer = record::kNoName;
  std::int32_t tensor = record::kNoName;
  friend auto operator<=>(const TensorKey&, const TensorKey&) = default;
};

using UseHistogram =
    std::function<void(const TensorKey& key, std::int64_t iteration, const Histogram& histogram)>;
// Those of one tensor and iteration come once for each rank, and for each part of the iteration.
void for_each_histogram(const record::RunReader& run, const record::RecordQuery& query,
                        const UseHistogram& use);

}  // namespace telens::cli
