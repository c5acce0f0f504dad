// A condition of a Trigger on a statistic or another number, its grammar, and its evaluation over a
// series of values. No LibTorch.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/base/names.h"
#include "hooks/config/error_list.h"
#include "hooks/config/value.h"
#include "hooks/statistics/statistic_name.h"

namespace telens {

struct Condition {
  enum class Relation : std::uint8_t { above, at_least, below, at_most, jumps, drops, spikes };
  enum class Average : std::uint8_t { median, mean };

  // The condition as it was written.
  std::string text;

  // The statistic of a tensor; nullopt for the number called `name`.
  std::optional<StatisticName> statistic = {};
  std::optional<TensorName> tensor = {};  // nullopt for every tensor that has the statistic
  // "loss", or the name under which the program or another feature records the number.
  std::string name = {};

  Relation relation = Relation::above;
  double bound = 0;  // a factor for jumps, drops and spikes
  // The average with which a spike is compared, and its number of values.
  Average average = Average::median;
  std::size_t window = 0;
};

// The default number of values for spikes: a spike of 25 iterations still fills at most half of
// them, and the loss of a training that learns decreases little in 50.
inline constexpr std::size_t kSpikeWindow = 50;
// A spike requires at least this many values before it, or all values of a shorter window: two
// outliers do not move the median of five.
inline constexpr std::size_t kFewestBeforeSpike = 5;

// The values of a series, in order. NaN fulfills every condition, because it cannot be shown to be
// within a bound. Factors are computed only from positive, finite values; compared with such a
// value, infinity is a jump and a spike. Later values are never compared with a nonfinite value.
class ConditionHistory {
 public:
  // The condition must outlive this object.
  explicit ConditionHistory(const Condition& condition) : condition_(condition) {}

  // Returns a description of the value if it fulfills the condition ("5.2, 2.6 times the median of
  // 50 values, 2"); otherwise nullopt.
  std::optional<std::string> add(double value);

 private:
  std::optional<std::string> judge(double value) const;
  std::optional<std::string> judge_step(double value) const;
  std::optional<std::string> judge_spike(double value) const;
  double average() const;

  const Condition& condition_;
  std::deque<double> before_;  // finite, the newest last
};

}  // namespace telens

namespace telens::features {

// The grammar of the conditions of a Trigger:
//   condition = subject relation
//   subject   = statistic ["of" tensor] | "loss" | "recorded" name
//   relation  = (">" | ">=" | "<" | "<=") number
//             | ("jumps" | "drops") ">" number "x"
//             | "spikes" ">" number "x" [("median" | "mean") ["of" count]]
// overflows% of gradient > 0.1, scale_inv jumps > 8x, loss spikes > 2x mean of 20
// scale_inv is short for scale_inv_max.

// Returns the conditions of a list, or of a string, in order. Adds mistakes to `errors`. Conditions
// may use built-in statistics and the statistics of `plugin`.
std::vector<Condition> parse_conditions(const config::Value& value, config::ErrorList& errors,
                                        const config::StatisticDescriptions* plugin = nullptr);

// Returns the tensors to which a condition on a statistic applies.
std::vector<TensorName> get_tensors(const Condition& condition);

}  // namespace telens::features
