// Severity of a problem: persistence times size, excluding warm-up. All commands sort by it. The
// derivation is in docs/internals/judging.md.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "analysis/series.h"
#include "hooks/statistics/catalogue.h"

namespace telens::analysis {

// Weight of a clipped element in lost_share(). An element that became zero counts once.
inline constexpr double kClippedCounts = 16;
// Returns the share of a tensor that a cast lost in one iteration. Usually 0 to 1; more if more
// than 1/16 of the elements were clipped.
double lost_share(double underflows_percent, double overflows_percent);

// Minimum loss that is highlighted: a tenth of the elements in every iteration, or an SQNR of 10
// dB.
inline constexpr double kNotableLoss = 0.1;

// Returns the catalogue's rows for the statistics of a run, by id; nullptr if the catalogue does
// not have it. Large values of such a statistic, for example of a plugin, count as bad.
std::vector<StatisticId> catalogue_rows(const record::RunReader& run);

// Returns the badness of a value, comparable within one statistic; 0 if it is not bad or not finite
// (see is_bad).
double badness(StatisticId statistic, double value);

// Returns true if the value is not finite, or is a nonzero count of non-finite elements.
bool is_bad(StatisticId statistic, double value);

// Mean size of the loss over the observed iterations. Warm-up iterations
// are used only if no other iteration was observed.
class Severity {
 public:
  void add(double size, bool warm_up) { (warm_up ? warm_up_ : usual_).add(size); }
  double value() const { return shown().mean(); }
  double largest() const { return shown().largest; }
  std::int64_t observed() const { return usual_.count; }  // iterations, excluding warm-up
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

// Sort key of a tensor.
struct SortKey {
  std::optional<std::int64_t> first_bad;  // first iteration with non-finite elements
  StepOrder order_in_step;                // position within that iteration
  double severity = 0;
  double tie_breaker = 0;  // between equal severities
  bool only_warm_up = false;
};

// Returns true if `a` comes before `b`: sorts by the first non-finite iteration, then by severity.
// Tensors that were only recorded in warm-up come last.
bool worse(const SortKey& a, const SortKey& b);

}  // namespace telens::analysis
