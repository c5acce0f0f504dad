// The chart of `telens plot --histogram`: how large the values of a tensor are, over iterations.
#pragma once

#include <string>
#include <vector>

#include "inspector_cli/report/chart.h"
#include "record/run_reader.h"

namespace telens::cli {

// A row for each exponent e, 2^e <= |x| < 2^(e+1), the largest above; of each the percentage of the
// tensor's elements, on the axis Axis::of_percentages.
struct TensorHistogram {
  std::string tensor;         // "layers.3.fc1 activation"
  std::vector<Line> rows;     // NaN, Inf, 2^8, 2^7, ..., zero; the first two where there are any
  std::int64_t elements = 0;  // in the last iteration, of all ranks
};

struct HistogramChart {
  Chart frame;  // the run and its iterations
  std::vector<TensorHistogram> tensors;
  std::vector<std::string> notes;  // remarks for the reader, a sentence each

  // Then rows are bars: there is nothing to be drawn over.
  bool one_iteration() const { return frame.first_iteration == frame.last_iteration; }
};

struct HistogramLimits {
  std::size_t bins;     // at most
  std::size_t tensors;  // the first ones of the run
  std::size_t rows;     // the most rows of exponents; with more a row has several
};
// The query selects histograms alone. UsageError if it fits none. `beside`: the chart whose
// iterations they are drawn over, all of theirs among them; nullptr: their own.
HistogramChart make_histogram_chart(const record::RunReader& run, const record::RecordQuery& query,
                                    const HistogramLimits& limits, const Chart* beside = nullptr);

// ", iteration 3, 786432 elements": of a single iteration.
std::string single_iteration(const HistogramChart& chart, const TensorHistogram& tensor);

std::string draw_text(const HistogramChart& chart, int width);
std::string draw_html(const HistogramChart& chart);

}  // namespace telens::cli
