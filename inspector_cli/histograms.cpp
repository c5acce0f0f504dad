#include "inspector_cli/histograms.h"

#include <vector>

#include "core/base/error.h"
#include "features/statistics/histogram_name.h"

namespace telens::cli {

using record::Dictionary;

record::RecordQuery histogram_query(const Selection& selection, const record::RunReader& run,
                                    const std::string& path) {
  const auto& statistics = run.names(Dictionary::statistic);
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    if (parse_histogram_name(statistics[i])) ids.push_back(static_cast<std::int32_t>(i));
  }
  if (ids.empty()) {
    raise<UsageError>(
        "{}: this run has no histograms; record them with the feature telens.ValueHistogram, as "
        "configs/value_histograms.yaml does (`telens features ValueHistogram` explains it)",
        path);
  }
  record::RecordQuery query = resolve(selection, run);
  query.statistics = std::move(ids);
  return query;
}

void for_each_histogram(const record::RunReader& run, const record::RecordQuery& query,
                        const UseHistogram& use) {
  const auto& statistics = run.names(Dictionary::statistic);
  std::vector<BinCount> bins;
  run.read_histograms(
      query, [&](int, const record::Record& record, std::span<const record::HistogramBin> stored) {
        if (record.statistic == record::kNoName) return;
        const auto name = parse_histogram_name(statistics[record.statistic]);
        if (!name) return;
        bins.clear();
        for (const auto& [bin, count] : stored) {
          bins.push_back({bin, static_cast<std::int64_t>(count)});
        }
        use(TensorKey{record.layer, record.tensor}, record.iteration, Histogram{*name, bins});
      });
}

}  // namespace telens::cli
