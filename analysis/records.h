// Reads the records, histograms and losses of a run, and groups records into series.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "analysis/series.h"
#include "hooks/statistics/from_histogram.h"
#include "record/run_reader.h"

namespace telens::analysis {

// One statistic of a tensor and layer, for one GEMM or (kNoName) for the tensor itself.
struct SeriesKey {
  std::int32_t layer = record::kNoName;
  std::int32_t tensor = record::kNoName;
  std::int32_t gemm = record::kNoName;
  std::int32_t statistic = record::kNoName;

  friend bool operator==(const SeriesKey&, const SeriesKey&) = default;
};

struct SeriesHash {
  std::size_t operator()(const SeriesKey& key) const;
};

StepOrder get_order_in_step(const SeriesKey& key, const record::RunReader& run);

// Returns "layers.3.fc1 activation fprop", printable.
std::string make_label(const SeriesKey& key, const record::RunReader& run);
// Returns the name, or "" for kNoName.
std::string name_or_empty(const record::RunReader& run, record::Dictionary dictionary,
                          std::int32_t id);

using UseRecord = std::function<void(const record::Record&)>;
// Passes each record of a query to `use`. A value that was reduced over a group is stored in the
// file of every rank of the group; `use` receives it once.
void for_each_record(const record::RunReader& run, const record::RecordQuery& query,
                     const UseRecord& use, const record::RunReader::Progress& progress = {});

struct TensorKey {
  std::int32_t layer = record::kNoName;
  std::int32_t tensor = record::kNoName;
  friend auto operator<=>(const TensorKey&, const TensorKey&) = default;
};

using UseHistogram =
    std::function<void(const TensorKey& key, std::int64_t iteration, const Histogram& histogram)>;
// Passes each histogram of a query (recorded by telens.ValueHistogram) to `use`: one call for each
// tensor, rank and part of an iteration.
void for_each_histogram(const record::RunReader& run, const record::RecordQuery& query,
                        const UseHistogram& use);

// Returns the losses that the program passed to debug.step(loss): of the lowest rank that has any,
// one point for each iteration, in order. Throws RecordError.
std::vector<Point> read_losses(const record::RunReader& run);

}  // namespace telens::analysis
