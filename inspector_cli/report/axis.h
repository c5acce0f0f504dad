// The value axis of a chart. It is logarithmic if one value is so large that a linear axis would
// draw all others as a flat line, as often in the first iteration.
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

// Maps values to places between 0 (smallest) and 1 (largest).
//   linear       values of similar size
//   logarithmic  positive values that span more than three decades, or mostly tiny ones
//   symlog       as logarithmic, but with zeros or negative values: linear between -t and t, then
//                one decade per width of the linear part for one sign
// Warm-up values do not count; values beyond the axis are drawn at its edge.
class Axis {
 public:
  explicit Axis(const std::vector<Line>& lines);
  // Returns an axis from 0 to 100, logarithmic above `threshold`. It is equal for all tensors and
  // runs, so that colors are comparable.
  static Axis of_percentages(double threshold = 1e-4);
  // Returns the axis of a heat map. overflows% and underflows% have a fixed axis on which a healthy
  // run is pale. Other statistics have no absolute range.
  static Axis of_map(std::string_view statistic, const std::vector<Line>& lines);
  // Returns true if the axis is equal for all runs.
  bool is_absolute() const { return is_absolute_; }
  double place(double value) const;
  double value_at(double place) const;
  std::vector<Tick> ticks() const;
  // Returns "" for a linear axis, otherwise a remark such as "logarithmic".
  std::string note() const;
  std::string short_note() const;  // "log above 0.001"

 private:
  Axis() = default;
  enum class Kind { linear, logarithmic, symlog };

  double stretched(double value) const;
  double unstretched(double stretched) const;
  std::vector<double> tick_values() const;

  Kind kind_ = Kind::linear;
  double low_ = 0;
  double high_ = 0;
  double threshold_ = 0;  // the end of symlog's linear part
  bool is_absolute_ = false;
};

// Returns the smallest step >= `least` that is 1, 2 or 5 times a power of ten.
double round_step(double least);

}  // namespace telens::cli
