#include "inspector_cli/report/histograms.h"

#include <vector>

#include "hooks/statistics/histogram_name.h"

namespace telens::cli {

using record::Dictionary;

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
