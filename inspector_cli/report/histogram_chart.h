// The chart of `telens plot --histogram`: magnitudes of a tensor over iterations.
#pragma once

#include <string>
#include <vector>

#include "inspector_cli/report/chart.h"
#include "record/run_reader.h"

namespace telens::cli {

// One row per exponent e, the largest first, with the percentage of elements x for which
// 2^e <= |x| < 2^(e+1), on Axis::of_percentages.
struct TensorHistogram {
  std::string tensor;         // "layers.3.fc1 activation"
  std::vector<Line> rows;     // NaN and Inf if present, then 2^8, 2^7, ..., zero
  std::int64_t elements = 0;  // in the last iteration, over all ranks
};

struct HistogramChart {
  Chart frame;  // the run and its iterations
  std::vector<TensorHistogram> tensors;
  std::vector<std::string> notes;  // remarks, one sentence each

  // For a single iteration, rows are drawn as bars.
  bool one_iteration() const { return frame.first_iteration == frame.last_iteration; }
};

struct HistogramLimits {
  std::size_t bins;     // at most
  std::size_t tensors;  // the most tensors, in the order of the run
  std::size_t rows;     // the most rows; several exponents share a row if there are more
};
// Requires a query that selects only histograms. Throws UsageError if it matches none. Draws over
// the iterations of `beside`, which must contain theirs, or over the histograms' iterations if it
// is nullptr.
HistogramChart make_histogram_chart(const record::RunReader& run, const record::RecordQuery& query,
                                    const HistogramLimits& limits, const Chart* beside = nullptr);

// Returns ", iteration 3, 786432 elements" if the chart has one iteration, else "".
std::string single_iteration(const HistogramChart& chart, const TensorHistogram& tensor);

std::string draw_text(const HistogramChart& chart, int width);
std::string draw_html(const HistogramChart& chart);

}  // namespace telens::cli
