// The chart of `telens plot`, for any output: statistics over iterations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inspector_cli/report/first_trouble.h"
#include "record/run_reader.h"

namespace telens::cli {

// The value of neighboring iterations: a non-finite one if there is any, else the one with the
// largest magnitude. Warm-up values count only if other values do not exist.
class Bin {
 public:
  Bin() = default;
  explicit Bin(double value) { add(value); }
  void add(double value, bool warm_up = false);
  void add(const Bin& other);
  bool seen() const { return seen_; }
  bool finite() const;
  double value() const { return value_; }
  // Returns true if all values are of warm-up. Such bins are marked and do not affect the axis.
  bool warm_up() const { return warm_up_; }
  // Returns true if the bin is part of a line.
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

// A statistic: its worst tensors as lines, and its layers as rows of a heat map that shows a
// layer's worst tensor.
struct Panel {
  std::int32_t id = record::kNoName;  // the statistic's
  std::string statistic;
  double loss = 0;  // of the worst tensor, comparable between statistics (severity.h)
  std::vector<Line> worst;
  std::vector<Line> layers;
  // The layer ids and tensors for the rows of `layers`. `tensors` is empty if ChartLimits does not
  // allow the tensors of all rows.
  std::vector<std::int32_t> layer_ids;
  std::vector<std::vector<Line>> tensors;
  std::size_t layers_left_out = 0;
};

struct Chart {
  std::string run_id;
  std::string log_dir;  // its name, or the name of a file outside of a log_dir
  std::int64_t first_iteration = 0;
  std::int64_t last_iteration = 0;
  std::size_t bins = 1;
  std::vector<Line> scalars;  // losses
  std::vector<Panel> panels;
  FirstTrouble trouble;
  std::vector<Sentence> headlines;  // describe `trouble`
  std::string subtitle;

  // Divides first_iteration to last_iteration, which must be set, into at most `most` bins.
  void set_bins(std::size_t most);
  // Returns the first iteration of a bin.
  std::int64_t get_iteration(std::size_t bin) const;
  std::size_t get_bin(std::int64_t iteration) const;
  // Returns "logs, 30 iterations".
  std::string title() const;
  // Returns round iterations for an axis.
  std::vector<std::int64_t> iteration_ticks() const;
};

struct ChartLimits {
  std::size_t bins;               // at most
  std::size_t lines;              // the most lines of worst tensors in a panel
  std::size_t panels;             // the most panels if no statistic is chosen
  std::size_t layers = SIZE_MAX;  // the most rows of a panel: its worst layers
  std::size_t tensor_bins = 0;    // the most bins of a panel's tensors
};
// Throws RecordError if the run does not contain records, UsageError if the query matches none.
Chart make_chart(const record::RunReader& run, record::RecordQuery query,
                 const ChartLimits& limits);
// Returns a chart of the losses only. It is empty if there are none.
Chart make_scalar_chart(const record::RunReader& run, const ChartLimits& limits);

// Extends the cells of a heat map to the next record, because a tensor that is recorded every ten
// iterations leaves nine of ten bins empty. A cell is at most one bin longer than the median
// distance of records: distances differ by a bin if iterations do not divide evenly into bins.
void widen_cells(std::vector<Line>& rows);

std::string draw_text(const Chart& chart, int width);
std::string draw_html(const Chart& chart);

}  // namespace telens::cli
