// The chart of `telens plot`, for any output: statistics over iterations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inspector_cli/report/first_trouble.h"
#include "record/run_reader.h"

namespace telens::cli {

// The values of some neighboring iterations as one: that of the largest magnitude, where any is
// not finite, that one. Those of warm-up count only where there are no others.
class Bin {
 public:
  Bin() = default;
  explicit Bin(double value) { add(value); }
  void add(double value, bool warm_up = false);
  void add(const Bin& other);
  bool seen() const { return seen_; }
  bool finite() const;
  double value() const { return value_; }
  // True if it has warm-up alone: marked, and left out of an axis.
  bool warm_up() const { return warm_up_; }
  // True if it is part of a line.
  bool drawn() const { return seen_ && !warm_up_ && finite(); }

 private:
  double value_ = 0;
  bool seen_ = false;
  bool warm_up_ = false;
};

// Labels, here and below, are printable.
struct Line {
  std::string label;
  std::vector<Bin> bins;
};

// One statistic: its worst tensors as lines, and its layers as rows of a heat map, in which a
// layer's value is that of its worst tensor.
struct Panel {
  std::int32_t id = record::kNoName;  // the statistic's
  std::string statistic;
  double loss = 0;  // its worst tensor's, comparable with other statistics' (severity.h)
  std::vector<Line> worst;
  std::vector<Line> layers;
  // Beside each row of `layers`: the layer's id, and its tensors where ChartLimits has room for
  // those of all rows, else none.
  std::vector<std::int32_t> layer_ids;
  std::vector<std::vector<Line>> tensors;
  std::size_t layers_left_out = 0;
};

struct Chart {
  std::string run_id;
  std::string log_dir;  // its name, or that of a file that is in none
  std::int64_t first_iteration = 0;
  std::int64_t last_iteration = 0;
  std::size_t bins = 1;
  std::vector<Line> scalars;  // losses
  std::vector<Panel> panels;
  FirstTrouble trouble;
  std::vector<Sentence> headlines;  // trouble in words
  std::string subtitle;             // names the drawing, where that is not said elsewhere

  // From first_iteration to last_iteration, both set; at most so many bins.
  void set_bins(std::size_t most);
  std::int64_t get_iteration(std::size_t bin) const;  // the first one of the bin
  std::size_t get_bin(std::int64_t iteration) const;
  // "logs, 30 iterations"
  std::string title() const;
  // Round numbers for an axis.
  std::vector<std::int64_t> iteration_ticks() const;
};

struct ChartLimits {
  std::size_t bins;               // at most
  std::size_t lines;              // the most lines of worst tensors in a panel
  std::size_t panels;             // the most panels, where no statistic is asked for
  std::size_t layers = SIZE_MAX;  // the most rows of a panel: its worst layers
  std::size_t tensor_bins = 0;    // the most bins of the tensors that a panel's rows are made of
};
// Throws RecordError for a run without records, UsageError for a query that fits none.
Chart make_chart(const record::RunReader& run, record::RecordQuery query,
                 const ChartLimits& limits);
// Its losses alone; of a run without any, a chart of nothing.
Chart make_scalar_chart(const record::RunReader& run, const ChartLimits& limits);

// A tensor that is recorded every ten iterations leaves nine bins of ten empty. A cell of the heat
// map reaches to the next record, but hardly further than records usually lie apart: by the bin
// that some distances are longer for where iterations do not divide into bins.
void widen_cells(std::vector<Line>& rows);

std::string draw_text(const Chart& chart, int width);
std::string draw_html(const Chart& chart);

}  // namespace telens::cli
