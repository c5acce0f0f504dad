// The axis on which values are drawn. One iteration, as a rule the first, may be a thousand times
// as large as all others: on a linear axis these would be a flat line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inspector_cli/report/chart.h"

namespace telens::cli {

struct Tick {
  double place = 0;  // 0 to 1
  std::string label;
};

// Where a value lies between the smallest (0) and largest (1) one.
//   linear       values of like size
//   logarithmic  positive values that span more than three decades, or of which most are dwarfed
//   symlog       the same where some are zero or negative: linear between -t and t, and beyond as
//                many decades as it takes, each as wide as the linear part of one sign
// Values of warm-up do not count; one that lies beyond is drawn at the edge.
class Scale {
 public:
  explicit Scale(const std::vector<Line>& lines);
  // 0 to 100, logarithmic above `threshold`: the same for all tensors and runs, so that their
  // colors compare.
  static Scale of_percentages(double threshold = 1e-4);
  // The scale of a heat map. overflows% and underflows% have a fixed one, on which a healthy run is
  // pale. Other statistics have no absolute range.
  static Scale of_map(std::string_view statistic, const std::vector<Line>& lines);
  // True if it is the same for all runs.
  bool is_absolute() const { return is_absolute_; }
  double place(double value) const;
  double value_at(double place) const;
  std::vector<Tick> ticks() const;
  // A remark for the reader of the axis: "logarithmic"; empty for a linear one.
  std::string note() const;
  std::string short_note() const;  // "log above 0.001"

 private:
  Scale() = default;
  enum class Kind { linear, logarithmic, symlog };

  double stretched(double value) const;
  double unstretched(double stretched) const;
  std::vector<double> tick_values() const;

  Kind kind_ = Kind::linear;
  double low_ = 0;
  double high_ = 0;
  double threshold_ = 0;  // where symlog turns linear
  bool is_absolute_ = false;
};

// The smallest step of 1, 2 or 5 times a power of ten that is at least so large.
double round_step(double least);

}  // namespace telens::cli
