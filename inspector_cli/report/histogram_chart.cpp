#include "inspector_cli/report/histogram_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "analysis/series.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "inspector_cli/report/axis.h"

namespace telens::cli {
namespace {

using analysis::for_each_histogram;
using analysis::SeriesKey;
using analysis::TensorKey;

using record::Dictionary;
using CountsByIteration = std::map<std::int64_t, MagnitudeCounts>;  // summed over ranks

std::map<TensorKey, CountsByIteration> read_counts(const record::RunReader& run,
                                                   const record::RecordQuery& query) {
  std::map<TensorKey, CountsByIteration> counts_by_tensor;
  for_each_histogram(run, query,
                     [&](const TensorKey& key, std::int64_t iteration, const Histogram& histogram) {
                       merge(counts_by_tensor[key][iteration], count_magnitudes(histogram));
                     });
  return counts_by_tensor;
}

struct Exponents {
  int lowest = 0;
  int highest = -1;  // none
};

Exponents get_exponents(const CountsByIteration& by_iteration) {
  Exponents range;
  for (const auto& [iteration, counts] : by_iteration) {
    if (counts.exponents.empty()) continue;
    const int low = counts.exponents.begin()->first;
    const int high = counts.exponents.rbegin()->first;
    const bool first = range.highest < range.lowest;
    range = first ? Exponents{low, high}
                  : Exponents{std::min(range.lowest, low), std::max(range.highest, high)};
  }
  return range;
}

// Returns a row with the percentage of elements that `count` counts in each iteration.
template <typename Count>
Line get_row(const Chart& frame, const CountsByIteration& by_iteration, std::string label,
             const Count& count) {
  Line row{std::move(label), std::vector<Bin>(frame.bins)};
  for (const auto& [iteration, counts] : by_iteration) {
    if (counts.numel == 0) continue;
    row.bins[frame.get_bin(iteration)].add(100.0 * static_cast<double>(count(counts)) /
                                           static_cast<double>(counts.numel));
  }
  return row;
}

std::string row_label(int lowest, int highest) {
  return lowest == highest ? fmt::format("2^{}", highest)
                           : fmt::format("2^{} .. 2^{}", lowest, highest);
}

std::vector<Line> get_rows(const Chart& frame, const CountsByIteration& by_iteration,
                           std::size_t most_rows) {
  std::vector<Line> rows;
  const auto add_if_any = [&](const char* label, std::int64_t MagnitudeCounts::*member) {
    const auto any = [&](const auto& moment) { return moment.second.*member > 0; };
    if (std::ranges::none_of(by_iteration, any)) return;
    rows.push_back(get_row(frame, by_iteration, label, [&](const auto& of) { return of.*member; }));
  };
  add_if_any("NaN", &MagnitudeCounts::nans);
  add_if_any("Inf", &MagnitudeCounts::infinities);
  const Exponents range = get_exponents(by_iteration);
  const int exponents = range.highest - range.lowest + 1;
  const auto most = static_cast<int>(most_rows);
  const int step = std::max(1, (exponents + most - 1) / most);
  for (int high = range.highest; high >= range.lowest; high -= step) {
    const int low = std::max(high - step + 1, range.lowest);
    rows.push_back(
        get_row(frame, by_iteration, row_label(low, high), [&](const MagnitudeCounts& counts) {
          std::int64_t sum = 0;
          for (auto at = counts.exponents.lower_bound(low);
               at != counts.exponents.end() && at->first <= high; ++at) {
            sum += at->second;
          }
          return sum;
        }));
  }
  rows.push_back(
      get_row(frame, by_iteration, "zero", [](const auto& counts) { return counts.zeros; }));
  widen_cells(rows);
  return rows;
}

Chart make_frame(const record::RunReader& run,
                 const std::map<TensorKey, CountsByIteration>& counts_by_tensor,
                 std::size_t most_bins) {
  Chart frame;
  frame.run_id = printable(run.segments().front().run_id);
  frame.first_iteration = INT64_MAX;
  frame.last_iteration = INT64_MIN;
  for (const auto& [key, by_iteration] : counts_by_tensor) {
    frame.first_iteration = std::min(frame.first_iteration, by_iteration.begin()->first);
    frame.last_iteration = std::max(frame.last_iteration, by_iteration.rbegin()->first);
  }
  frame.set_bins(most_bins);
  return frame;
}

Chart frame_beside(const Chart& other) {
  Chart frame;
  frame.run_id = other.run_id;
  frame.first_iteration = other.first_iteration;
  frame.last_iteration = other.last_iteration;
  frame.bins = other.bins;
  return frame;
}

}  // namespace

HistogramChart make_histogram_chart(const record::RunReader& run, const record::RecordQuery& query,
                                    const HistogramLimits& limits, const Chart* beside) {
  auto counts_by_tensor = read_counts(run, query);
  if (counts_by_tensor.empty()) raise<UsageError>("no histogram fits these filters");
  HistogramChart chart;
  if (counts_by_tensor.size() > limits.tensors) {
    chart.notes.push_back(
        fmt::format("{} of {} tensors with histograms; choose others with --layer and --tensor",
                    limits.tensors, counts_by_tensor.size()));
    counts_by_tensor.erase(
        std::next(counts_by_tensor.begin(), static_cast<std::ptrdiff_t>(limits.tensors)),
        counts_by_tensor.end());
  }
  chart.frame =
      beside != nullptr ? frame_beside(*beside) : make_frame(run, counts_by_tensor, limits.bins);
  chart.frame.subtitle = fmt::format(
      "Magnitudes: percentage of the elements x of a tensor with 2^e <= |x| < 2^(e+1); {}",
      Axis::of_percentages().note());
  for (const auto& [key, by_iteration] : counts_by_tensor) {
    chart.tensors.push_back({make_label(SeriesKey{key.layer, key.tensor}, run),
                             get_rows(chart.frame, by_iteration, limits.rows),
                             by_iteration.rbegin()->second.numel});
  }
  return chart;
}

std::string single_iteration(const HistogramChart& chart, const TensorHistogram& tensor) {
  if (!chart.one_iteration()) return "";
  return fmt::format(", iteration {}, {} elements", chart.frame.first_iteration, tensor.elements);
}

}  // namespace telens::cli
