// The drawing of one tensor's histograms, which the HTML page has too.
#pragma once

#include "inspector_cli/report/histogram_chart.h"
#include "inspector_cli/report/svg_pieces.h"

namespace telens::cli {

Drawing histogram_drawing(const HistogramChart& chart, const TensorHistogram& tensor);

}  // namespace telens::cli
