// How bad it is what a run shows, in one order for all commands: persistence times size, warm-up
// aside. docs/internals/judging.md derives it.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "analysis/records.h"
#include "hooks/statistics/catalogue.h"

namespace telens::analysis {

// The share of a tensor that a cast lost in one iteration, 0 to 1 as a rule: an element that became
// zero counts once, one that was clipped kClippedCounts times.
inline constexpr double kClippedCounts = 16;
double lost_share(double underflows_percent, double overflows_percent);

// A loss from which on a tensor is worth attention: as if a tenth of the elements were lost in
// every iteration, or an SQNR of 10 dB.
inline constexpr double kNotableLoss = 0.1;

// The catalogue's row of each statistic of a run, by id; null: the catalogue has none of that name,
// as for a plugin's statistic, whose large values count as bad.
std::vector<StatisticId> catalogue_rows(const record::RunReader& run);

// How bad a single value of a statistic is, 0 for not at all; comparable among values of one
// statistic. A value that is not finite is no matter of size: see is_bad.
double badness(StatisticId statistic, double value);

// The value tells of elements that are not finite: it is not finite itself, or counts some.
bool is_bad(StatisticId statistic, double value);

// A mean over observed iterations: the share of them in which something was lost, times what was
// lost in those. Iterations of warm-up count only where there are no others.
class Severity {
 public:
  void add(double size, bool warm_up) { (warm_up ? warm_up_ : usual_).add(size); }
  double value() const { return shown().mean(); }
  double largest() const { return shown().largest; }
  std::int64_t observed() const { return usual_.count; }  // warm-up aside
  std::int64_t persisting() const { return usual_.positive; }
  std::int64_t warm_up() const { return warm_up_.count; }
  bool only_warm_up() const { return usual_.count == 0 && warm_up_.count > 0; }

 private:
  struct Sizes {
    double sum = 0;
    double largest = 0;
    std::int64_t count = 0;
    std::int64_t positive = 0;

    void add(double size);
    double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
  };
  const Sizes& shown() const { return only_warm_up() ? warm_up_ : usual_; }

  Sizes usual_;
  Sizes warm_up_;
};

// Where a tensor stands among others.
struct Standing {
  std::optional<std::int64_t> first_bad;  // iteration in which elements were first not finite
  StepOrder turn;                         // within it
  double severity = 0;
  double beside = 0;  // decides among equals
  bool only_warm_up = false;
};

// The earliest non-finite first, then by severity; what was seen in warm-up alone comes last.
bool worse(const Standing& a, const Standing& b);

}  // namespace telens::analysis
